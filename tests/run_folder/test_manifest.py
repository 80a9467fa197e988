"""A checkpoint with changed or missing files is refused; the error names the file."""

from __future__ import annotations

import pytest

from agentrl.errors import ConfigError
from agentrl.run_folder.manifest import check_manifest, write_manifest


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "trainer_state").mkdir()
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "trainer_state/state.pt").write_bytes(b"state")
    (tmp_path / "run_state.json").write_text("{}")
    write_manifest(tmp_path)
    return tmp_path


def test_unchanged_files_pass_and_the_state_may_be_updated(checkpoint, capsys):
    (checkpoint / "run_state.json").write_text('{"best": null}')
    check_manifest(checkpoint)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state/state.pt"])
def test_a_flipped_bit_is_found(checkpoint, name):
    content = bytearray((checkpoint / name).read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name} was changed after the run wrote it"):
        check_manifest(checkpoint)


def test_a_missing_file_is_named(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        check_manifest(checkpoint)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_checksums_that_cannot_be_read_are_refused(checkpoint, text):
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match=r"manifest\.json cannot be read"):
        check_manifest(checkpoint)


def test_a_checkpoint_of_an_earlier_version_is_loaded_with_a_notice(checkpoint, capsys):
    (checkpoint / "manifest.json").unlink()
    check_manifest(checkpoint)
    assert "has no manifest.json" in capsys.readouterr().out

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from agentrl.errors import ConfigError
from agentrl.plan.hardware import hardware_names, load_hardware, parse_fleet
from agentrl.plan.lengths import LengthsConfig

PAGE = Path(__file__).parents[2] / "docs/plan_time.md"

OWN = """
name: Own
memory_gib: 10
peak_tflops: {bf16: 100}
share_of_peak: 0.5
memory_gb_s: 1000
link_gb_s: 50
network_gb_s: 10
devices_per_node: 4
"""


def test_all_shipped_files_are_valid_and_named_like_their_device():
    names = hardware_names()
    assert {"H100", "H200", "H20", "A100", "B200", "GB200", "L40S", "RTX4090", "MI300X", "CPU"} <= set(names)
    assert all(load_hardware(name).name == name for name in names)


def test_a_price_has_a_source_and_a_date():
    priced = [found for name in hardware_names() if (found := load_hardware(name)).price_per_hour is not None]
    assert priced
    assert all("20" in each.price_note for each in priced)


@pytest.mark.parametrize(("text", "number"), [("64xH100", 64), ("h100", 1), ("8 x rtx-4090", 8), ("2*A100", 2)])
def test_a_fleet_is_a_number_and_a_name_in_any_case(text, number):
    fleet = parse_fleet(text)
    assert fleet.num_devices == number
    assert str(fleet) == f"{number}x{fleet.hardware.name}"


@pytest.mark.parametrize("text", ["", "0xH100", "64x", "64xH10O0", "-3xH100"])
def test_an_unknown_fleet_is_refused(text):
    with pytest.raises(ConfigError):
        parse_fleet(text)


def test_the_nearest_name_is_suggested():
    with pytest.raises(ConfigError, match="'h20'"):
        load_hardware("h20x")


def test_a_file_of_a_user_is_read_by_its_path(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    found = parse_fleet(f"4x{path}")
    assert (found.num_devices, found.hardware.name) == (4, "Own")
    assert found.hardware.flops_per_s("fp8") == 50e12  # no own peak: that of bf16


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN.replace("memory_gib: 10", "memory_gb: 10").replace("share_of_peak: 0.5", "share_of_peak: 5"))
    with pytest.raises(ConfigError) as error:
        load_hardware(str(path))
    keys = " ".join(problem.text for problem in error.value.problems)
    assert len(error.value.problems) == 3
    assert all(key in keys for key in ("memory_gb", "memory_gib", "share_of_peak"))


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\udcff", "- x", ""])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError):
        load_hardware(str(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        load_hardware(str(tmp_path / "none.yaml"))


def test_the_examples_of_the_documentation_are_valid(tmp_path):
    hardware, lengths = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "own.yaml"
    path.write_text(hardware)
    assert load_hardware(str(path)) == load_hardware("h100").model_copy(update={"price_note": ""})
    assert LengthsConfig.model_validate(yaml.safe_load(lengths)).max_tokens == 32768


def test_the_documentation_names_all_devices():
    assert ", ".join(hardware_names()) in PAGE.read_text(encoding="utf-8")

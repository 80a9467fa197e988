"""Access control, and browser security headers."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from viewer_runs import TOKEN, group, rollout, write_run


@pytest.fixture
def client(view, tmp_path) -> TestClient:
    return view(write_run(tmp_path, {1: [group("a", rollout())]})).client


@pytest.mark.parametrize(
    "path", ["/", "/api/state", "/wrong/", "/wrong/api/state", "/correct-hors/", f"//{TOKEN}/", "/%F0%9F/"]
)
def test_nobody_reads_without_the_token(client, path):
    assert client.get(path).status_code == 403


def test_the_token_alone_leads_to_the_page(client):
    answer = client.get(f"/{TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (307, f"/{TOKEN}/")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1234", "127.0.0.1.evil.example", "", "[", "127.0.0.2"])
def test_a_name_made_to_lead_here_is_refused(client, host):
    assert client.get(f"/{TOKEN}/api/state", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:8080", "localhost"])
def test_its_own_names_are_answered_at_any_port_as_through_a_tunnel(client, host):
    assert client.get(f"/{TOKEN}/api/state", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_one_can_only_read(client, method):
    answer = client.request(method, f"/{TOKEN}/api/state", headers={"origin": "http://evil.example"})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize(
    "path", ["/", f"/{TOKEN}/", f"/{TOKEN}/api/state", f"/{TOKEN}/static/main.js", f"/{TOKEN}/nothing"]
)
def test_every_answer_forbids_foreign_code_frames_and_readers(client, path):
    headers = client.get(path, headers={"origin": "http://evil.example"}).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not {name for name in headers if name.startswith("access-control")} | ({"set-cookie"} & set(headers))


@pytest.mark.parametrize(
    "path", ["static/../app.py", "static/%2e%2e/app.py", "static/..%2fapp.py", "static//etc/passwd"]
)
def test_only_the_pages_own_files_are_given(client, path):
    assert client.get(f"/{TOKEN}/{path}").status_code == 404


def test_everything_the_page_loads_is_there_and_its_own(client):
    page = client.get(f"/{TOKEN}/").text
    for path in ("static/style.css", "static/rollout.css", "static/main.js", "static/icon.svg"):
        assert path in page
        assert client.get(f"/{TOKEN}/{path}").status_code == 200
    assert "http" not in page

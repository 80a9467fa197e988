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
def test_requests_without_the_token_are_refused(client, path):
    assert client.get(path).status_code == 403


def test_page_needs_the_token_in_the_address(client):
    answer = client.get(f"/{TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (307, f"/{TOKEN}/")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1234", "127.0.0.1.evil.example", "", "[", "127.0.0.2"])
def test_dns_rebinding_host_is_refused(client, host):
    assert client.get(f"/{TOKEN}/api/state", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:8080", "localhost"])
def test_localhost_names_are_accepted_at_any_port(client, host):
    assert client.get(f"/{TOKEN}/api/state", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_viewer_is_read_only(client, method):
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
def test_server_serves_only_the_files_of_the_page(client, path):
    assert client.get(f"/{TOKEN}/{path}").status_code == 404


def test_page_loads_only_local_files(client):
    page = client.get(f"/{TOKEN}/").text
    for path in ("static/style.css", "static/rollout.css", "static/main.js", "static/icon.svg"):
        assert path in page
        assert client.get(f"/{TOKEN}/{path}").status_code == 200
    assert "http" not in page

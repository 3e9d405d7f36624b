"""`silomix mix health` and `mix rotate`."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from silomix_lab.consortium.create import Consortium
from support.operator_commands import one_line_error, silomix


def test_a_mix_without_a_metrics_address_cannot_be_asked_for_its_health(
    consortium: Consortium,
) -> None:
    error = one_line_error(silomix("mix", "health", consortium.mixes[0]))
    assert "metrics_listen is not set" in error


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, {"status": "ok", "problems": []}, None),
        (503, {"status": "failing", "problems": ["disk full", "late"]}, "disk full; late"),
        (503, {"problems": []}, "status 503"),
        (200, ["something"], "is not a mix"),
    ],
)
def test_the_health_of_a_mix_is_what_it_says(
    consortium: Consortium, status: int, body: object, said: str | None
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        path = consortium.mixes[0]
        path.write_text(f'metrics_listen = "{address}"\n' + path.read_text())
        result = silomix("mix", "health", path)
        thread.join()
    if said is None:
        assert (result.returncode, result.stdout) == (0, f"ok: the mix at {address} is well\n")
    else:
        assert said in one_line_error(result)
    assert "no mix answers" in one_line_error(silomix("mix", "health", path))


def test_rotating_a_mix_that_has_no_keys_throws_nothing_away(consortium: Consortium) -> None:
    result = silomix("mix", "rotate", consortium.mixes[0])
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("keys of 0 rounds thrown away")

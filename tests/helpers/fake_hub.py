"""A stand-in for the Hugging Face Hub on the loopback interface: the requests that pushing and pulling files make."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

REVISION = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """Repositories in memory: `files[repository][name]`; `sizes` overrides the sizes that the Hub reports."""

    files: dict[str, dict[str, bytes]]
    sizes: dict[str, dict[str, int]]
    requests: list[str]

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.requests.append(f"POST {self.path}")
        path = urlparse(self.path).path
        if path == "/api/repos/create":
            fields = json.loads(body)
            name = f"{fields.get('organization') or 'me'}/{fields['name'].rpartition('/')[2]}"
            self.files.setdefault(name, {})
            self._answer({"url": f"{self._address()}/{name}", "id": name})
        elif "/preupload/" in path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in path:
            repository = "/".join(path.split("/")[3:5])
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.files[repository][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            self._answer({"commitUrl": f"{self._address()}/{repository}/commit/{REVISION}", "commitOid": REVISION})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        else:
            self._answer({"error": "not found"}, 404)

    def _serve(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        parts = urlparse(self.path).path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in self.files:
            repository = "/".join(parts[2:4])
            files = self.files[repository]
            sizes = {name: len(data) for name, data in files.items()} | self.sizes.get(repository, {})
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            self._answer({"id": repository, "modelId": repository, "sha": REVISION, "siblings": siblings})
        elif len(parts) == 5 and parts[2] == "resolve" and parts[4] in self.files.get("/".join(parts[:2]), {}):
            data = self.files["/".join(parts[:2])][parts[4]]
            etag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": REVISION}
            self._send(200, data, {**etag, "Content-Type": "application/octet-stream"})
        else:
            self._answer({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _address(self) -> str:
        return f"http://{self.headers['Host']}"

    def _answer(self, value: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(code, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def fake_hub(files: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, type[FakeHub]]]:
    """Serve repositories; gives the address and the handler, whose `files` receive what is pushed."""
    handler = type("Hub", (FakeHub,), {"files": files, "sizes": {}, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        server.server_close()

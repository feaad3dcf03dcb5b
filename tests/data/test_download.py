"""Downloads from a local server: resumed, verified, atomic."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from quatsphere.data import cifar_files, download, download_dataset
from quatsphere.data.cifar_files import CIFAR10, MIRROR, OFFICIAL_SITE, Archive
from quatsphere.errors import ConfigError, DataError

CONTENT = os.urandom(1_000_000)


@dataclass
class Site:
    """Behaviour of the server, and the requests it received."""

    content: bytes = CONTENT
    status: int = 200
    breaks_after: list[int] = field(default_factory=list)
    ranges: bool = True
    ranges_requested: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested = self.headers.get("Range")
            state.ranges_requested.append(requested)
            state.paths.append(self.path)
            start = int(requested.removeprefix("bytes=").rstrip("-")) if requested and state.ranges else 0
            if state.status != 200 or start > len(state.content):
                self.send_error(state.status if state.status != 200 else 416)
                return
            body = state.content[start:]
            self.send_response(206 if requested and state.ranges else 200)
            if requested and state.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.breaks_after.pop(0)] if state.breaks_after else body)
            self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def archive(monkeypatch: pytest.MonkeyPatch) -> Archive:
    """The official archives shrunk to CONTENT."""
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    archives = tuple(replace(one, size=len(CONTENT), sha256=sha256) for one in CIFAR10.archives)
    monkeypatch.setitem(cifar_files.CIFARS, "cifar10", replace(CIFAR10, archives=archives))
    monkeypatch.setattr(download, "PAUSE", 0.01)
    monkeypatch.delenv("QUATSPHERE_URL", raising=False)
    return archives[0]


def test_complete_download(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = download_dataset("cifar10", tmp_path / "new", site.url, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "new" / "cifar-10-binary.tar.gz"
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert site.paths == ["/cifar-10-binary.tar.gz"]
    assert download_dataset("cifar10", tmp_path / "new", site.url) == path
    assert len(site.ranges_requested) == 1, "an intact file is not fetched again"


def test_broken_connection_is_resumed(site: Site, tmp_path: Path) -> None:
    site.breaks_after = [300_000, 200_000]
    assert download_dataset("cifar10", tmp_path, site.url).read_bytes() == CONTENT
    assert site.ranges_requested == [None, "bytes=300000-", "bytes=500000-"]


def test_next_call_resumes_the_download(site: Site, tmp_path: Path) -> None:
    site.breaks_after = [100_000, 0, 0, 0]
    with pytest.raises(DataError, match=r"download failed .*connection broke at 100000 of 1000000 bytes.*try again"):
        download_dataset("cifar10", tmp_path, site.url)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz.part"]
    site.ranges_requested.clear()
    assert download_dataset("cifar10", tmp_path, site.url).read_bytes() == CONTENT
    assert site.ranges_requested == ["bytes=100000-"]


def test_server_without_ranges_restarts_the_download(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    site.breaks_after = [300_000]
    assert download_dataset("cifar10", tmp_path, site.url).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT + bytes(500_000)], ids=["flipped", "longer"])
def test_wrong_checksum_is_deleted(site: Site, tmp_path: Path, content: bytes) -> None:
    site.content = content
    with pytest.raises(DataError, match="sha256 differs from the official archive, file deleted"):
        download_dataset("cifar10", tmp_path, site.url)
    assert list(tmp_path.iterdir()) == []


def test_leftover_of_another_file_is_replaced(site: Site, tmp_path: Path) -> None:
    part = tmp_path / "cifar-10-binary.tar.gz.part"
    part.write_bytes(bytes(len(CONTENT) + 5))
    assert download_dataset("cifar10", tmp_path, site.url).read_bytes() == CONTENT
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"damaged")
    assert download_dataset("cifar10", tmp_path, site.url).read_bytes() == CONTENT


def test_server_errors_are_named(site: Site, tmp_path: Path) -> None:
    for status, requests in ((404, 1), (503, download.ATTEMPTS)):
        site.status = status
        site.ranges_requested.clear()
        with pytest.raises(DataError, match=rf"^download failed \(http://127\S+: HTTP {status}\); ") as caught:
            download_dataset("cifar10", tmp_path, site.url)
        assert caught.value.exit_code == 3
        assert len(site.ranges_requested) == requests


def test_connection_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Connection refused"):
        download_dataset("cifar10", tmp_path, "http://127.0.0.1:1")


def test_mirror_is_used_when_the_official_address_fails(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "OFFICIAL_SITE", "http://127.0.0.1:1/")
    monkeypatch.setattr(download, "MIRROR", f"{site.url}/mirror/")
    assert download_dataset("cifar10", tmp_path).name == "cifar-10-python.tar.gz"
    assert site.paths == ["/mirror/cifar-10-python.tar.gz"]


def test_order_of_download_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [archive.name for archive in CIFAR10.archives]
    assert [url for url, _ in download.sources("cifar10")] == [OFFICIAL_SITE + names[0], MIRROR + names[1]]
    assert download.sources("cifar10", "https://host/x/cifar-10-python.tar.gz")[0][1].name == names[1]
    monkeypatch.setenv("QUATSPHERE_URL", "https://host/x/")
    assert [url for url, _ in download.sources("cifar10")] == [f"https://host/x/{names[0]}"]
    with pytest.raises(ConfigError, match="must start with http"):
        download.sources("cifar10", "file:///etc/passwd")
    with pytest.raises(ConfigError, match="nothing to download for 'digits'"):
        download_dataset("digits", "x")


def test_folder_that_cannot_be_created(site: Site, tmp_path: Path) -> None:
    from quatsphere.errors import ResourceError

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match="cannot write cifar10"):
        download_dataset("cifar10", tmp_path / "file" / "x", site.url)

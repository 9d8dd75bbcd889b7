"""The TOML as pydantic models: a mirror of the contract, key by key, with its defaults. Nothing is resolved here."""

from __future__ import annotations

import re
import shlex
from ipaddress import ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from swapd.units import parse_duration, parse_size

_SHELL_PIECE = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<!\S)#[^\n]*""", re.DOTALL)


def _argv(value: Any) -> Any:
    """A shell-quoted string or an array; lines may be continued with a backslash, and words that begin with # are
    comments (``shlex`` knows neither: it keeps the newline, and cuts words at a #)."""
    if isinstance(value, str):
        plain = _SHELL_PIECE.sub(lambda m: "" if m[1] in (None, "\\\n") else m[1], value)
        try:
            return shlex.split(plain)
        except ValueError as error:
            raise ValueError(f"shell quoting: {error}") from None
    return value


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than 0")
    return seconds


def _url_path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"a path begins with '/': {'/' + text!r}")
    return text


def _host(text: str) -> str:
    """A name as requests are compared with: whatever the port, in lower case, an IPv6 address without brackets."""
    try:
        return str(ip_address(text))
    except ValueError:
        pass
    try:
        parts = urlsplit(f"//{text}")
        name, _ = parts.hostname or "", parts.port
    except ValueError:
        name = ""
    if not name or parts.netloc != text or re.search(r"[@,\s]", text):
        raise ValueError(f"no host name: {text!r} (write 'box.example'; a port may follow and does not count)")
    return name.rstrip(".")


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Bound = Annotated[float, BeforeValidator(parse_duration), AfterValidator(_positive)]
Argv = Annotated[list[str], BeforeValidator(_argv)]


def _auto_or_duration(value: Any) -> float | str:
    return "auto" if value == "auto" else parse_duration(value)


def _auto_or_size(value: Any) -> int | str:
    return "auto" if value == "auto" else parse_size(value)


def _vram(value: Any) -> int | str | dict[str, int]:
    return {str(k): parse_size(v) for k, v in value.items()} if isinstance(value, dict) else _auto_or_size(value)


def _auto_or_count(value: Any) -> int | str:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value  # type: ignore[no-any-return]
    raise ValueError('should be a whole number from 0 on, or "auto"')


def _auto_or_switch(value: Any) -> bool | str:
    if value == "auto" or isinstance(value, bool):
        return value  # type: ignore[no-any-return]
    raise ValueError('should be true, false or "auto"')


def _auto_or_names(value: Any) -> str | list[str]:
    if value == "auto" or (isinstance(value, list) and all(isinstance(v, str) for v in value)):
        return value  # type: ignore[no-any-return]
    raise ValueError('should be a list of ids, or "auto"')


def _gpus(value: Any) -> str | list[int | str]:
    if value == "all":
        return "all"
    if isinstance(value, list) and all(isinstance(v, int | str) and not isinstance(v, bool) for v in value):
        return value
    raise ValueError('should be "all", [] to hide every GPU, or a list of indices, PCI bus ids or UUIDs')


LingerValue = Annotated[float | Literal["auto"], PlainValidator(_auto_or_duration)]
RamSize = Annotated[int | Literal["auto"], PlainValidator(_auto_or_size)]
VramSize = Annotated[int | Literal["auto"] | dict[str, int], PlainValidator(_vram)]
Gpus = Annotated[Literal["all"] | list[int | str], PlainValidator(_gpus)]
Count = Annotated[int, Field(ge=0)]
UrlPath = Annotated[str, AfterValidator(_url_path)]
Hosts = Annotated[list[str], AfterValidator(lambda texts: [_host(text) for text in texts if text.strip()])]
AutoSwitch = Annotated[bool | Literal["auto"], PlainValidator(_auto_or_switch)]
AutoNames = Annotated[list[str] | Literal["auto"], PlainValidator(_auto_or_names)]
AutoCount = Annotated[int | Literal["auto"], PlainValidator(_auto_or_count)]


class Section(BaseModel):
    """A table of the TOML: an unknown key or a wrong type is an error, and nothing is changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Server(Section):
    """``[server]``."""

    listen: str = "127.0.0.1:8080"
    api_keys: list[str] = []
    admin_keys: list[str] = []
    cors_origins: list[str] = []
    hosts: Hosts = []
    drain: Duration = 20.0
    header_hold: Duration = 20.0
    heartbeat: Duration = 10.0
    max_body: Size = 256 << 20
    state_dir: str = ""
    default_model: str = ""
    loading_status: Literal["off", "comment", "reasoning"] = "off"
    capture: bool = False
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Devices(Section):
    """``[devices]``."""

    source: str = "auto"
    sample_interval: Bound = 2.0


class Headroom(Section):
    """``[headroom]``."""

    vram: Size = 1 << 30
    ram: Size = 1 << 30
    page_cache: Literal["off", "warn", "refuse"] = "warn"
    gpus: dict[str, Size] = {}


class Scheduling(Section):
    """``[scheduling]``."""

    max_wait: Duration = 60.0
    min_residency: Duration = 0.0
    linger: LingerValue = "auto"
    queue_limit: Count = 4096
    queue_timeout: Bound = 1800.0
    release_timeout: Bound = 10.0
    kill_timeout: Bound = 10.0
    backoff: Annotated[list[Bound], Field(min_length=2, max_length=2)] = [5.0, 300.0]
    ungrouped: Literal["headroom", "swap"] = "headroom"


class Binary(Section):
    """``[binaries.NAME]``."""

    path: str
    library_path: list[str] = []
    env: dict[str, str] = {}
    args: Argv = []


class Params(Section):
    """``params`` of a model."""

    set: dict[str, Any] = {}
    strip: list[str] = []


class Ladder(Section):
    """``[models.X.ladder]``."""

    flag: str
    steps: Annotated[list[str], Field(min_length=1)]
    sizes: list[Size] = []


class Model(Section):
    """``[models.ID]``; ``[defaults]`` has the same keys."""

    gguf: str = ""
    binary: str = ""
    args: Argv = []
    ctx: AutoCount = 0
    n_cpu_moe: AutoCount = 0
    gpus: Gpus = "all"
    vram: VramSize = "auto"
    ram: RamSize = "auto"
    env: dict[str, str] = {}
    aliases: list[str] = []
    idle_timeout: Duration = 0.0
    load_timeout: Bound = 600.0
    first_byte_timeout: Duration = 0.0
    stop_grace: Duration = 30.0
    concurrency: Count = 0
    priority: int = 0
    linger: LingerValue | None = None
    on_conflict: Literal["swap", "refuse"] = "swap"
    on_hangup: Literal["abort", "drain"] = "abort"
    persistent: bool = False
    preload: bool = False
    keep_context: AutoSwitch = False
    expect_gpu: bool = False
    description: str = ""
    unlisted: bool = False
    params: Params = Params()
    variants: dict[str, dict[str, Any]] = {}
    ladder: Ladder | None = None
    cmd: Argv = []
    stop_cmd: Argv = []
    health: UrlPath = "/health"
    upstream_model: str = ""
    api_key: str = ""


class GroupSection(Section):
    """``[groups.ID]``."""

    members: list[str]
    swap: bool = True
    exclusive: bool = True
    persistent: bool = False
    preload: bool = False


class Selector(Section):
    """``[selectors.ID]``."""

    targets: Annotated[list[str], Field(min_length=1)]
    strategy: Literal["warm", "pin", "spillover"] = "warm"


class Profile(Section):
    """``[profiles.ID]``."""

    pins: dict[str, str] = {}


class Context(Section):
    """``[context]``."""

    dir: str = ""
    max_disk: Size = 20 << 30
    max_age: Duration = 86400.0
    min_tokens: Count = 512


class Peer(Section):
    """``[peers.ID]``."""

    url: str
    api_key: str = ""
    models: AutoNames = "auto"


class File(Section):
    """The whole file."""

    server: Server = Server()
    devices: Devices = Devices()
    headroom: Headroom = Headroom()
    scheduling: Scheduling = Scheduling()
    vars: dict[str, str | int | float | bool] = {}
    binaries: dict[str, Binary] = {}
    defaults: Model = Model()
    models: dict[str, Model] = {}
    groups: dict[str, GroupSection] = {}
    selectors: dict[str, Selector] = {}
    profiles: dict[str, Profile] = {}
    context: Context = Context()
    peers: dict[str, Peer] = {}

"""Container files, without Docker: valid by the Compose Specification, and naming only what exists."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from swapd import wiring
from swapd.config import schema
from swapd.proxy.serve import CLOSE_S
from swapd.units import parse_duration

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = sorted(DOCKER.glob("compose*.yaml"))
DOCKERFILE = DOCKER / "Dockerfile"
HOSTS = sorted((DOCKER / "hosts").glob("*.env"))
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class Loader(yaml.SafeLoader):
    """With Compose's own tags: what they reset counts as it is written."""


Loader.add_constructor("!reset", lambda loader, node: loader.construct_sequence(node))


def name_of(path: Path) -> str:
    return path.name


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(path.read_text(), Loader)
    return found


def filled(text: str, values: dict[str, str] | None = None) -> str:
    """A value with its variables, or their defaults."""
    return VARIABLE.sub(lambda m: (values or {}).get(m[1], m[2] or ""), text)


def env_file(path: Path) -> dict[str, str]:
    lines = (line.partition("=") for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


def instructions(path: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest), lines joined, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages(path: Path) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {"": []}
    for word, rest in instructions(path):
        if word == "FROM":
            found[rest.split()[-1]] = [(word, rest)]
        else:
            list(found.values())[-1].append((word, rest))
    return found


BACKENDS = ("cpu", "cuda", "slim", "vulkan")


# ---- Dockerfile


def test_image_runs_as_a_user_of_its_own_with_no_shell_and_no_init() -> None:
    found = stages(DOCKERFILE)["final"]
    last = dict(found)
    assert last["USER"] == "10001"
    assert json.loads(last["ENTRYPOINT"]) == ["/opt/swapd/bin/python", "-m", "swapd"]
    assert json.loads(last["CMD"]) == ["serve"]
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert "org.opencontainers.image.licenses" in last["LABEL"]
    assert "/ready" in last["HEALTHCHECK"] and "curl" not in last["HEALTHCHECK"]
    environment = dict(pair.split("=", 1) for word, rest in found if word == "ENV" for pair in rest.split())
    assert environment["SWAPD_SERVER__LISTEN"] == "0.0.0.0:8080"
    assert all(name.removeprefix("SWAPD_SERVER__").lower() in schema.Server.model_fields
               for name in environment if name.startswith("SWAPD_SERVER__"))  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_what_compiles_for_it_and_what_it_runs_on(backend: str) -> None:
    found = stages(DOCKERFILE)
    assert {f"tools-{backend}", f"base-{backend}"} <= set(found)


def test_backends_are_no_others() -> None:
    found = {stage.partition("-")[2] for stage in stages(DOCKERFILE) if stage.startswith(("tools-", "base-"))}
    assert found == set(BACKENDS)


def test_builds_ask_no_registry_for_a_frontend() -> None:
    assert not DOCKERFILE.read_text().startswith("# syntax"), "each build would need Docker Hub"


def test_bases_are_pinned_by_tag_or_stages() -> None:
    found = stages(DOCKERFILE)
    arguments = dict(rest.split("=", 1) for word, rest in found[""] if word == "ARG")
    for word, rest in instructions(DOCKERFILE):
        if word == "FROM":
            image = VARIABLE.sub(lambda m: arguments[m[1]], rest.split()[0])
            assert image in found or (":" in image and not image.endswith(":latest")), image


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, rest in instructions(DOCKERFILE):
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == a or source.startswith(f"{a}/") for a in allowed), f"{source} is ignored"


# ---- Compose


@pytest.mark.parametrize("path", COMPOSE, ids=name_of)
def test_compose_file_is_valid_by_the_specification(path: Path) -> None:
    text = resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    errors = [e.message for e in Draft7Validator(json.loads(text)).iter_errors(load(path))]
    assert not errors, errors


@pytest.mark.parametrize("path", COMPOSE, ids=name_of)
def test_nothing_is_published_beyond_loopback(path: Path) -> None:
    for service in load(path)["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("path", COMPOSE, ids=name_of)
def test_what_is_mounted_exists_and_every_volume_is_declared(path: Path) -> None:
    tree = load(path)
    for service in tree["services"].values():
        for mount in service.get("volumes", ()):
            source = filled(mount).split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), source
            elif not source.startswith("/"):
                assert source in tree["volumes"], source


@pytest.mark.parametrize("path", COMPOSE, ids=name_of)
def test_images_are_pinned_by_tag(path: Path) -> None:
    for service in load(path)["services"].values():
        image = filled(service.get("image", "x:y"))
        assert ":" in image and not image.endswith(":latest")


def swapd_service() -> dict[str, Any]:
    found: dict[str, Any] = load(DOCKER / "compose.yaml")["services"]["swapd"]
    return found


def stop_bound(file: schema.File) -> float:
    graces = [model.stop_grace for model in file.models.values()] or [schema.Model().stop_grace]
    return file.server.drain + max(graces) + file.scheduling.kill_timeout + CLOSE_S


def test_docker_waits_longer_than_swapd_takes_to_stop() -> None:
    grace = parse_duration(swapd_service()["stop_grace_period"])
    assert grace > stop_bound(schema.File())
    for host in HOSTS:
        path = DOCKER / env_file(host)["SWAPD_CONFIG_DIR"] / env_file(host)["SWAPD_CONFIG_FILE"]
        assert grace > stop_bound(wiring._loaded(str(path), {}, demo_models=False).file)


def test_compose_reserves_gpus_and_keeps_the_root_read_only() -> None:
    service = swapd_service()
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
    assert service["read_only"] is True and service["restart"] == "unless-stopped"
    mounted = {filled(m).split(":")[1] for m in service["volumes"]} | {t.split(":")[0] for t in service["tmpfs"]}
    environment = {
        key: value for _, rest in stages(DOCKERFILE)["final"] if _ == "ENV"
        for key, _, value in (pair.partition("=") for pair in rest.split())
    }  # fmt: skip
    for name in ("SWAPD_SERVER__STATE_DIR", "XDG_RUNTIME_DIR"):
        assert environment[name] in mounted, f"{name} must be writable"
    args = service["build"]["args"]
    assert filled(args["BACKEND"]) == "cuda"
    assert set(args) <= {rest.split("=")[0] for word, rest in instructions(DOCKERFILE) if word == "ARG"}


@pytest.mark.parametrize("host", HOSTS, ids=name_of)
def test_a_hosts_profile_runs_from_the_image(host: Path) -> None:
    values = env_file(host)
    used = {name for name, _ in VARIABLE.findall((DOCKER / "compose.yaml").read_text())}
    assert set(values) <= used | set(swapd_service()["build"]["args"])
    config = DOCKER / values["SWAPD_CONFIG_DIR"] / values["SWAPD_CONFIG_FILE"]
    resolved = wiring.configure(str(config), devices=str(config.with_suffix(".sim.json")), files=False)
    engines = {"upstream", "ik", values.get("FORK_NAME", "turboquant")}
    for binary in resolved.binaries.values():
        name = Path(binary.path).parts[3]
        assert binary.path == f"/opt/llama/{name}/bin/llama-server" and name in engines
        assert binary.library_path == (f"/opt/llama/{name}/lib",)
    ggufs = [Path(spec.gguf) for spec in resolved.launches.values() if spec.gguf]
    mounts = [Path(filled(m, values).split(":")[1]) for m in swapd_service()["volumes"]]
    assert all(any(gguf.is_relative_to(mount) for mount in mounts) for gguf in ggufs)


def test_every_host_of_the_profiles_has_its_env_file() -> None:
    assert {path.stem for path in HOSTS} == {path.stem for path in (ROOT / "profiles").glob("*.toml")}


def test_overlays_change_services_of_the_base_or_add_their_own() -> None:
    for path in COMPOSE:
        for service in load(path)["services"].values():
            assert set(service.get("depends_on", ())) <= {"swapd", "prometheus"}


def test_prometheus_asks_where_swapd_answers() -> None:
    (job,) = yaml.safe_load((DOCKER / "metrics" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": ["swapd:8080"]}]


def test_the_sample_configuration_is_valid() -> None:
    wiring.configure(str(DOCKER / "config" / "swapd.toml"), files=False)

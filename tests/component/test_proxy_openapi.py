"""The OpenAPI document is true: what it describes is what comes, whatever is sent."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from starlette.testclient import TestClient

from swapd.errors import QueueFull, StartFailed
from swapd.proxy.app import build_app
from swapd.proxy.settings import ProxySettings
from swapd.supervisor.ports import Upstream
from tests.component.fake_supervisor import ROUTES, FakeSupervisor

KEY = {"authorization": "Bearer key"}


def app() -> Any:
    supervisor = FakeSupervisor(dict.fromkeys(ROUTES, Upstream(path="/nowhere")))
    supervisor.refusals["a"] = StartFailed("a did not start", stderr_tail="out of memory")
    supervisor.refusals["b"] = QueueFull("4096 requests wait already", retry_after_s=5)
    return build_app(supervisor, ROUTES, ProxySettings(api_keys=("key",), bound_to_loopback=False))  # type: ignore[arg-type]


schema = schemathesis.openapi.from_asgi("/api/openapi.json", app(), headers=KEY).exclude(path="/api/events")


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.filterwarnings("default")
def test_answers_are_as_the_document_says(case: schemathesis.Case) -> None:
    if "model" in case.path_parameters and (case.body is None or len(case.path_parameters["model"]) % 2):
        case.path_parameters["model"] = ("a", "b", "org/model:q4 k")[len(case.path_parameters["model"]) % 3]
    response = case.call(headers=KEY)
    case.validate_response(response, headers=KEY, excluded_checks=[not_a_server_error])  # 502 and 503 are said
    assert response.status_code != 500 and response.headers["x-request-id"]


def test_document_names_every_route_with_its_answers() -> None:
    client = TestClient(app(), base_url="http://localhost", headers=KEY)
    document = client.get("/api/openapi.json").json()
    operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
    assert len(operations) >= 7
    for path, method in operations:
        operation = document["paths"][path][method]
        assert operation["description"] and operation["responses"]["200"]["content"], (path, method)
        assert "422" not in operation["responses"] and {"401", "403"} <= operation["responses"].keys()

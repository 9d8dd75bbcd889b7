"""``GET|PUT /api/profile``: names that mean other models while a profile is active; kept for swapd's life."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from swapd.proxy.api_models import problems
from swapd.proxy.directory import Directory

log = structlog.get_logger(__name__)


class ProfileWanted(BaseModel):
    """The body of PUT; null: no profile."""

    model_config = ConfigDict(extra="forbid")

    profile: str | None


class Profiles(BaseModel):
    """The active profile, its pins, and those there are."""

    model_config = ConfigDict(extra="allow")

    profile: str | None
    pins: dict[str, str]
    profiles: list[str]


def add_profiles(api: FastAPI, directory: Directory) -> None:
    """Add both routes."""

    def told() -> dict[str, Any]:
        names = directory.names
        pins = dict(names.profiles.get(directory.profile or "", {}))
        return {"profile": directory.profile, "pins": pins, "profiles": list(names.profiles)}

    @api.get("/api/profile", response_model=Profiles, responses=problems())
    async def get_profile() -> dict[str, Any]:
        """The active profile, and which there are."""
        return told()

    @api.put("/api/profile", response_model=Profiles, responses=problems(400, 404))
    async def put_profile(wanted: ProfileWanted) -> dict[str, Any]:
        """Switch: requests from now on are pinned as it says; what runs goes on."""
        directory.switch(wanted.profile)
        log.info("profile", profile=wanted.profile)
        return told()

"""A counter as a NeMo-Gym server. This file runs in the Python environment of the package nemo-gym.

python counter_server.py PORT
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY, BaseServerConfig, ServerClient
from omegaconf import OmegaConf
from pydantic import BaseModel, Field


class Increment(BaseModel):
    count: int


class Seed(BaseSeedSessionRequest):
    initial_count: int


class Verify(BaseVerifyRequest):
    expected_count: int


class CounterServer(SimpleResourcesServer):
    counters: dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/increment_counter")(self.increment_counter)
        app.post("/get_counter_value")(self.get_counter_value)
        return app

    async def seed_session(self, request: Request, body: Seed) -> BaseSeedSessionResponse:
        self.counters[request.session[SESSION_ID_KEY]] = body.initial_count
        return BaseSeedSessionResponse()

    async def increment_counter(self, request: Request, body: Increment) -> dict[str, bool]:
        if body.count < 0:
            raise HTTPException(422, "count must not be negative")
        self.counters[request.session[SESSION_ID_KEY]] += body.count
        return {"success": True}

    async def get_counter_value(self, request: Request) -> dict[str, int]:
        return {"count": self.counters[request.session[SESSION_ID_KEY]]}

    async def verify(self, request: Request, body: Verify) -> BaseVerifyResponse:
        right = self.counters[request.session[SESSION_ID_KEY]] == body.expected_count
        return BaseVerifyResponse(**body.model_dump(), reward=float(right))


if __name__ == "__main__":
    port = int(sys.argv[1])
    config = BaseResourcesServerConfig(
        host="127.0.0.1", port=port, name="counter", entrypoint="counter_server.py", domain="agent"
    )
    head = BaseServerConfig(host="127.0.0.1", port=port + 1)  # required by ServerClient, but not used here
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
    server = CounterServer(config=config, server_client=client)
    uvicorn.run(server.setup_webserver(), host="127.0.0.1", port=port, log_level="warning")

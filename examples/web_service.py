"""A web service on FastAPI whose counters are actors: `python web_service.py`, or `uvicorn
web_service:app`; then `curl -X POST "http://127.0.0.1:8000/counters/clicks?amount=5"`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from actors import Actor, NotExecutedError, OutcomeUnknownError, method
from runtime.aio import AioCluster, connect, open_local_cluster


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("a counter only grows")
        self.value += amount
        return self.value


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    address = os.environ.get("CLUSTER_ADDRESS")
    opening = connect(address) if address else open_local_cluster(nodes=1)
    async with opening as cluster:
        app.state.cluster = cluster
        yield


async def counter(name: str, request: Request) -> Counter:
    cluster: AioCluster = request.app.state.cluster
    return await cluster.options(name=f"counter/{name}", timeout=10.0).get_or_spawn(Counter)


app = FastAPI(lifespan=lifespan)


@app.post("/counters/{name}")
async def add(amount: int, counter: Annotated[Counter, Depends(counter)]) -> int:
    return await counter.add(amount)


@app.exception_handler(NotExecutedError)
async def not_executed(request: Request, error: NotExecutedError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})


@app.exception_handler(OutcomeUnknownError)
async def unknown(request: Request, error: OutcomeUnknownError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 504)


@app.exception_handler(ValueError)
async def refused(request: Request, error: ValueError) -> JSONResponse:
    return JSONResponse({"detail": error.args[0]}, 422)


if __name__ == "__main__":
    uvicorn.run(app, port=8000)

"""Words by which readers of other systems look for a page that has another word for it.

The site's search finds them, as the keywords of that page. Nothing of them is shown.
"""

from __future__ import annotations

from typing import Any

WORDS = {
    "failures/errors": "faq troubleshooting",
    "how-to/containers": "helm k8s podman",
    "how-to/elastic": "autoscale preemption slurm spot",
    "how-to/exactly_once": "outbox saga transaction",
    "how-to/functions": "joblib multiprocessing rpc task",
    "how-to/gpu": "accelerator nvidia",
    "how-to/graceful_stop": "preemption spot",
    "how-to/http": "grpc protobuf swagger websocket",
    "how-to/isolation": "oom subprocess zombie",
    "how-to/large_arrays": "dataframe pandas polars zerocopy",
    "how-to/leader": "election mutex semaphore",
    "how-to/leak": "oom",
    "how-to/logs": "structlog structured",
    "how-to/machines": "discovery dns ipv6 ssh",
    "how-to/notebook": "colab jupyter jupyterlab",
    "how-to/periodic": "cron interval repeat schedule scheduler timer",
    "how-to/pools": "autoscale joblib mapreduce reduce starmap",
    "how-to/retries": "breaker circuit tenacity",
    "how-to/state": "checkpoint database persist persistence snapshot sql",
    "how-to/stuck": "deadlock hung",
    "how-to/testing": "fake mock stub unittest",
    "how-to/torch": "deepspeed lightning mpi slurm",
    "how-to/watching": "pubsub topic",
    "index": "quickstart",
    "operate/command_line": "ps repl",
    "operate/coordination": "consensus consul paxos raft zookeeper",
    "operate/metrics": "datadog grafana statsd",
    "operate/tracing": "datadog jaeger zipkin",
    "reference/environment": "configuration settings yaml",
    "reference/options": "configuration settings",
    "reference/sendable_types": "dataframe msgpack pickle protobuf serialization serialize",
    "start/index": "conda faq poetry quickstart troubleshooting uv",
    "start/when-not": "darwin",
}
"""Words for each page, apart from those that it has itself."""


def add_words(app: Any, document: Any) -> None:
    """Make the words of a page its keywords, which the search reads."""
    # Here, since the tests read the words where Sphinx is not installed.
    from docutils import nodes

    words = WORDS.get(app.env.docname)
    if words is not None:
        content = ", ".join(words.split())
        document.append(nodes.meta("", name="keywords", content=content, lang=app.config.language))


def setup(app: Any) -> dict[str, bool]:
    """For Sphinx."""
    app.connect("doctree-read", add_words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""A node's metrics and health over HTTP, for Prometheus and for service managers."""

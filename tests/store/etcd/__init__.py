"""The store in etcd: its addresses, its JSON, its transport under faults."""

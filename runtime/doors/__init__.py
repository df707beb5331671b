"""Doors: how programs that do not run on trio use a cluster. Users import `runtime.blocking` and
`runtime.aio`.
"""

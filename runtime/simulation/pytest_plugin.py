"""Where the plug-in for pytest was before it had more than `simulated`: for installations and
configurations that still name this module.
"""

pytest_plugins = ("runtime.pytest_plugin",)

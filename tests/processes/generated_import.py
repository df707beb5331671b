"""A module that fails when it is imported, in code whose source only a loader of its own has."""

from tests.loaders import SourceLoader, generated, without_entry

generated(SourceLoader(without_entry))["divide"](0)

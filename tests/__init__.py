"""The tests: a folder for each room of the product, and what they share.

A package, so that pytest knows a test module by the name under which processes of tests can import
it: `tests.calls.test_streams`.
"""

"""The OpenAPI document is valid according to the standard.

The file is separate from the tests of the document's content, because the validator takes twice as long under coverage.
"""

from __future__ import annotations

import pytest

from fairlead_api.routes.openapi import document

pytestmark = pytest.mark.slow


def errors_of(described: dict[str, object]) -> list[Exception]:
    """Return the errors found by the validator of the OpenAPI standard."""
    # The import takes seconds to compile grammars, which would delay the collection of tests.
    from openapi_spec_validator import OpenAPIV31SpecValidator

    return list(OpenAPIV31SpecValidator(described).iter_errors())


def test_the_document_is_valid_openapi() -> None:
    """The standard's validator finds no error in the OpenAPI document, and every reference has a target."""
    described = document("0.1.0")

    assert errors_of(described) == []
    assert described["openapi"] == "3.1.0"


def test_the_validator_would_find_an_error() -> None:
    """The validator reports a response without a description, so the test of the whole document can fail."""
    described = document("0.1.0")
    broken = {**described, "paths": {"/v1/versions": {"get": {"responses": {"200": {}}}}}}

    assert errors_of(broken)

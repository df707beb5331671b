"""The words by which the site's search finds a page."""

from __future__ import annotations

import pytest

from docs.search_words import WORDS
from tests.house import ROOT


@pytest.mark.parametrize("page", WORDS)
def test_a_page_with_words_for_the_search_is_there_and_has_not_these_words_itself(
    page: str,
) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text().lower()
    words = WORDS[page].split()
    assert words == sorted(set(words))
    assert [word for word in words if f" {word} " in text] == []

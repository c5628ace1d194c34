"""What users read is in plain words and short sentences: documents, help, messages."""

from __future__ import annotations

from statistics import median

from tests.docs.user_text import USUAL, problems, user_text


def test_words_and_sentences_are_plain() -> None:
    sentences = list(user_text())
    assert len(sentences) > 5_000
    assert list(problems(sentences)) == []
    assert median(sentence.words for sentence in sentences if sentence.words > 3) <= USUAL


def test_the_rules_find_what_they_are_for() -> None:
    """The list of words has no pattern that never matches."""
    from tests.docs.user_text import Sentence

    bad = (
        "The log tells when a file is left out",
        "the answer is kept anew",
        "it rests on a foreseen size",
        "a sketch of fragments came and went",
    )
    assert [len(list(problems([Sentence("x.md", 1, text)]))) for text in bad] == [2, 2, 2, 2]
    long = Sentence("x.md", 1, " ".join(["word"] * 31))
    assert list(problems([long])) == [f"x.md:1: 31 words: {long.text}"]

"""Tests of `bench.versus`, `bench.overhead`, `bench.formats` and the peer table: arithmetic and wording, no timing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.pairs import EMBEDDED
from bench import formats, overhead, tables, versus
from bench.models import BenchPair
from bench.ours import Ours, Watched, drafted_and_accepted

PAIR = BenchPair(
    "embedded", EMBEDDED / "draft.gguf", EMBEDDED / "target.gguf", (("prose", "And it came to pass"),)
)


def taken(ours: float, server: float, *, share: float = 1.0) -> dict[str, float]:
    """Returns one round of k = 4 in which plain decoding took 20 s with ours and 22 s with the server."""
    return {"ours_4": ours, "server_4": server, "plain_ours": 20.0, "plain_server": 22.0, "share": share}


def test_ratios_are_taken_within_rounds() -> None:
    """A slow round slows both sides: the ratio of medians would be another number."""
    rounds = [taken(10.0, 11.0), taken(30.0, 36.0), taken(10.0, 13.0)]
    found = versus.summary(rounds, 4, 51, 2)
    assert found["ours_over_server"]["median"] == pytest.approx(1.2)
    assert (found["ours_over_server"]["low"], found["ours_over_server"]["high"]) == pytest.approx((1.1, 1.3))
    assert found["ours_over_server"]["of"] == "range"
    assert found["tokens_per_second"]["ours"] == pytest.approx(2 * 50 / 10)
    assert found["plain_ours_over_server"]["median"] == pytest.approx(1.1)
    assert found["speedup_ours"]["median"] == pytest.approx(2.0)
    assert found["speedup_server"]["median"] == pytest.approx(22 / 13)
    assert "ours_draft_1_over_server" not in found
    assert found["disturbed_rounds_used"] == 0


def test_six_rounds_give_an_interval() -> None:
    """From six rounds on the ratio has its 95 % interval."""
    assert versus.ratio([1, 2, 3, 4, 5, 6], [1] * 6) == {
        "median": 3.5,
        "low": 1,
        "high": 6,
        "of": "interval",
    }


def test_a_draft_on_one_thread_has_a_ratio_of_its_own() -> None:
    """Where the draft also decoded on one thread, that is compared with the server in the same round."""
    rounds = [{**taken(10.0, 12.0), "ours_draft_1_4": 8.0}]
    assert versus.summary(rounds, 4, 51, 2)["ours_draft_1_over_server"]["median"] == pytest.approx(1.5)


def test_disturbed_rounds_only_fill_up() -> None:
    """Rounds in which something else had the processors are used only where others are missing, the best first."""
    good = [taken(1, 1), taken(2, 2)]
    bad = [taken(3, 3, share=0.5), taken(4, 4, share=0.8)]
    assert versus.choose(good, bad, 2) == good
    assert versus.choose(good, bad, 3) == [*good, bad[1]]
    assert versus.summary([*good, bad[1]], 4, 51, 1)["disturbed_rounds_used"] == 1


def test_the_shown_command_line_holds_no_folder(tmp_path: Path) -> None:
    """The server's command line in the results names files, not where they lie."""
    pair = BenchPair("pair", tmp_path / "d.gguf", tmp_path / "t.gguf", ())
    shown = versus.server_flags(pair, 4, 1)
    assert "d.gguf" in shown and "t.gguf" in shown
    assert str(tmp_path) not in shown and "/" not in shown.replace("127.0.0.1", "")


def test_shares_of_time_sum_to_what_is_outside() -> None:
    """Logits and choices and other Python are together what is outside llama_decode."""
    found = overhead.split(10.0, 9.0, 0.75)
    assert found == pytest.approx(
        {"outside_llama_decode": 0.1, "logits_and_choice": 0.075, "other_python": 0.025}
    )


def test_our_loop_makes_the_tokens_asked_for_and_the_watch_changes_nothing() -> None:
    """With and without the draft `count` - 1 tokens follow the first, the same ones; all time is accounted for."""
    ours = Ours(PAIR, 1)
    ours.read(PAIR.prompts[0][1])
    watched = Watched()
    runs = [ours.speculative(k, 18, watched) for k in (1, 4, 6)]
    plain = ours.plain(18)
    assert len(plain) == 17
    assert all(run.tokens == plain for run in runs)
    drafted, accepted = drafted_and_accepted(runs[1])
    assert 0 <= accepted <= drafted and watched.gap > 0
    shares = overhead.overhead(ours, PAIR, 4, 18)
    assert shares["logits_and_choice"] + shares["other_python"] == pytest.approx(
        shares["outside_llama_decode"], abs=0.05
    )
    assert all(0 < share < 1 for share in shares.values())
    assert ours.speculative(4, 18).tokens == plain  # the watch is off again
    ours.close()


def row(**changes: Any) -> dict[str, Any]:
    """Returns one result of `bench.versus.compare`, as short as the table allows."""
    return {
        "pair": "embedded",
        "licence": "Apache-2.0",
        "k": 4,
        "threads": 2,
        "prompts": 2,
        **versus.summary([{**taken(10.0, 12.0), "ours_draft_1_4": 8.0}] * 6, 4, 51, 2),
        "rounds_disturbed": 1,
        "overhead": overhead.split(10.0, 9.0, 0.75),
        "same_tokens": 2,
        "smallest_gap_where_they_differ": None,
        "drafted_and_accepted": {"ours": [8, 5], "server": [8, 5]},
        "server_command": "llama-server -m target.gguf",
        "system_ours": "CPU : AVX2 = 1",
        "system_server": "CPU : AVX2 = 1",
        "peak_memory_mb": {"ours": 113.2, "server": 77.0},
        **changes,
    }


def alone(q8_0: float) -> dict[str, Any]:
    """Returns what `bench.formats.measure` gives when Q8_0 is so many times as fast as F32."""
    return {
        name: {
            "tokens_per_second": 10 * times,
            "megabytes": 37,
            "over_f32": versus.ratio([times] * 6, [1] * 6),
        }
        for name, times in (("f32", 1.0), ("q8_0", q8_0))
    }


def test_the_table_shows_every_ratio() -> None:
    """Ratio and interval, counts, shares, memory and both descriptions of the processor are in the table."""
    text = tables.peer({"embedded": [row()]}, {"embedded": alone(1.5)})
    assert "| embedded (Apache-2.0) | 4 | 2 | 10.0 | 8.3 | **1.20 (1.20–1.20)** | 1.50 (1.50–1.50) |" in text
    assert "| 2/2 | 8, 5; 8, 5 | 6 (1, 0) |" in text
    assert "| embedded | 4 | 10.0 % | 7.5 % | 2.5 % | 1.33 | 113 | 77 |" in text
    assert "| q8_0 | 37 | 15.0 | 1.50 (1.50–1.50) |" in text
    assert text.count("CPU : AVX2 = 1") == 2


def test_the_table_marks_what_cannot_be_relied_on() -> None:
    """Disturbed rounds, tokens that differ, and a range in place of an interval are marked."""
    few = versus.summary([taken(10.0, 12.0, share=0.5)], 4, 51, 2)
    shaky = row(**few, same_tokens=1, smallest_gap_where_they_differ=0.0004)
    shaky.pop("ours_draft_1_over_server")
    text = tables.peer({"embedded": [shaky]}, {})
    assert "| embedded (disturbed) (Apache-2.0) | 4 |" in text
    assert "**1.20 (~1.20–1.20)** | – | 1/2, gap 0.0004 |" in text


def test_a_smaller_format_that_wins_is_said_plainly() -> None:
    """Whether a smaller format alone beats F32 with speculation is a sentence of its own."""
    assert "the smaller format by itself is faster than F32 with speculation" in formats.verdict(
        alone(2.5), [row()]
    )
    said = formats.verdict(alone(1.5), [row()])
    assert "2.00 times as fast as F32 alone; the fastest format alone is Q8_0 at 1.50 times" in said

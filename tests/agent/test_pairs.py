"""Tests of `agent.pairs`, on real files and on stores laid out as Ollama lays them out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agent import candidates, filefacts
from agent.filefacts import FileFacts
from agent.ollama.names import parse
from agent.ollama.store import read_store
from agent.pairs import MOST_LISTED, MOST_RANKED, ModelFile, PairChoice, PairPolicy, choose_pair
from agent.pipe import PairEvent
from shared.schemas import ModelListing, Pair
from tests.agent.ollama.gguf_edit import STRING, Gguf
from tests.agent.ollama.server import free_port, ollama_server
from tests.agent.ollama.support import DRAFT, TARGET, as_nobody, smollm2, variant
from tools.ollama_store import add_model, build_store, remove_model, write_manifest

MIB = 1024**2


@pytest.fixture(autouse=True)
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files written just now count as settled."""
    monkeypatch.setattr(filefacts, "SETTLED_NS", -(10**18))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of one vocabulary in three sizes, and one of another."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        size: variant(folder / size, grow=n * 100_000) for n, size in enumerate(("small", "middle", "large"))
    }
    other = {"tokenizer.ggml.pre": lambda _: b"qwen2"}
    return made | {"other": variant(folder / "other", other, grow=900_000)}


def store(tmp_path: Path, models: dict[str, Path]) -> Path:
    """Makes a store with these models."""
    return build_store(tmp_path / "store", models)


def names(choice: PairChoice) -> tuple[str, str]:
    """The draft's and the target's name."""
    assert choice.found and choice.draft and choice.target, choice.reason
    return choice.draft.name, choice.target.name


def setting(index: int, value: Any) -> Callable[[list[Any]], None]:
    """Returns what sets one item of a list."""

    def change(items: list[Any]) -> None:
        items[index] = value

    return change


# Named files


def test_embedded_pair_is_found() -> None:
    """The pair in the package is one family."""
    choice = choose_pair(embedded=True)
    assert (choice.found, choice.reason, choice.family) == (True, "one vocabulary", "llama")
    assert names(choice) == ("embedded:draft", "embedded:target")
    assert [ModelListing.model_validate(model).loadable for model in choice.models] == [True, True]
    assert [pair["fits"] for pair in choice.ranked] == [True]


def test_a_choice_goes_through_the_pipe(tmp_path: Path, files: dict[str, Path]) -> None:
    """A choice becomes an event as JSON and comes back as it was."""
    root = store(tmp_path, {"llama3.2:1b": files["small"], "llama3.1:8b": files["large"]})
    for choice in (choose_pair(embedded=True), choose_pair(ollama_models=root)):
        event = PairEvent.model_validate(asdict(choice))
        assert PairEvent.model_validate_json(event.model_dump_json()) == event
        assert (event.draft, event.target) == (choice.draft, choice.target)
        assert json.loads(json.dumps(choice.ranked)) == choice.ranked


@pytest.mark.parametrize(
    ("key", "change", "told"),
    [
        ("tokens", setting(1234, b"zzq"), "token 1234 ('rist' / 'zzq')"),
        ("merges", setting(1000, b"z zq"), "merge 1000 ("),
        ("eos_token_id", lambda _: 7, "EOS token (0 / 7), end-of-generation ids (0 / 0, 7)"),
    ],
)
def test_one_difference_is_no_family(
    tmp_path: Path, key: str, change: Callable[[Any], Any], told: str
) -> None:
    """Two models of one architecture with one differing token, merge, or end-of-text id are no pair, and it is named.

    Neither when they are named, nor when they are in a store, where the reason also says what to pull.
    """
    draft = variant(tmp_path / "one.gguf")
    target = variant(tmp_path / "two.gguf", {f"tokenizer.ggml.{key}": change}, grow=1000)
    choice = choose_pair(draft=draft, target=target)
    assert not choice.found
    assert choice.reason.startswith(f"one and two differ in {told}")
    assert [model["loadable"] for model in choice.models] == [True, True]
    swapped = (
        told.replace("'rist' / 'zzq'", "'zzq' / 'rist'")
        .replace("0 / 7", "7 / 0")
        .replace("0 / 0, 7", "0, 7 / 0")
    )
    choice = choose_pair(ollama_models=store(tmp_path, {"llama3.2:1b": draft, "llama3.1:8b": target}))
    assert not choice.found and choice.draft is None
    assert choice.reason.startswith(
        f"llama3.1:8b has no smaller model with its vocabulary (llama3.2:1b differs in {swapped}"
    )


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    """A file that is not there, or is no model, gives a reason with its name and no path."""
    (tmp_path / "text.gguf").write_text("hello")
    os.mkfifo(tmp_path / "pipe.gguf")
    for path, fault in (
        ("gone.gguf", "the file does not exist"),
        ("text.gguf", "it is not a GGUF file"),
        ("pipe.gguf", "the file cannot be read"),
        ("", "the file cannot be read"),
    ):
        for choice in (
            choose_pair(draft=DRAFT, target=tmp_path / path),
            choose_pair(draft=tmp_path / path, target=DRAFT),
        ):
            assert not choice.found
            assert choice.reason == f"{(tmp_path / path).stem} cannot be used: {fault}"
            assert str(tmp_path) not in json.dumps(choice.models)
    assert choose_pair(draft=DRAFT).reason == "a draft and a target must be named together"


def test_one_file_is_no_pair(tmp_path: Path) -> None:
    """The same file as draft and target is refused, by whatever path: it could only be slower."""
    (tmp_path / "link.gguf").symlink_to(DRAFT)
    choice = choose_pair(draft=tmp_path / "link.gguf", target=DRAFT)
    assert (choice.found, choice.reason) == (False, "draft and target are the same file")


def test_a_named_pair_must_fit_and_be_allowed() -> None:
    """A pair that is named is held to the operator's memory and bans like any other."""
    tight = choose_pair(embedded=True, policy=PairPolicy(memory_bytes=MIB))
    assert not tight.found and tight.draft is None
    assert tight.reason.startswith("no pair fits in memory: embedded:draft and embedded:target need ")
    assert tight.reason.endswith("and there are 1.0 MiB: take smaller models or a shorter context")
    assert [pair["fits"] for pair in tight.ranked] == [False]
    banned = choose_pair(embedded=True, policy=PairPolicy(forbid=("embedded:draft",)))
    assert banned.reason == "embedded:draft cannot be used: forbidden by the operator"


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    """A model replaced at the same path gives another choice, so that a loaded pair is not taken for it."""
    draft, target = variant(tmp_path / "d.gguf"), variant(tmp_path / "t.gguf", grow=500)
    before = choose_pair(draft=draft, target=target)
    assert before.found and before == choose_pair(draft=draft, target=target)
    variant(target, grow=600)
    assert not before.intact()
    assert before != choose_pair(draft=draft, target=target)


# A store


def test_the_largest_target_and_the_smallest_draft(tmp_path: Path, files: dict[str, Path]) -> None:
    """Of one vocabulary the smallest model drafts and the largest is the target, named as Ollama names them."""
    root = store(
        tmp_path,
        {
            "llama3.1:8b": files["large"],
            "llama3.2:3b": files["middle"],
            "llama3.2:1b": files["small"],
            "qwen:14b": files["other"],
        },
    )
    (tmp_path / "broken").write_bytes(b"not a model")
    add_model(root, "hf.co/someone/broken", tmp_path / "broken")
    choice = choose_pair(ollama_models=root)
    assert names(choice) == ("llama3.2:1b", "llama3.1:8b")
    assert [(pair["draft"], pair["target"], pair["fits"]) for pair in choice.ranked] == [
        ("llama3.2:1b", "llama3.1:8b", True),
        ("llama3.2:3b", "llama3.1:8b", True),
        ("llama3.2:1b", "llama3.2:3b", True),
    ]
    listed = {model["name"]: model for model in choice.models}
    assert listed["hf.co/someone/broken:latest"]["loadable"] is False
    assert listed["hf.co/someone/broken:latest"]["reason"] == "it is not a GGUF file"
    assert list(listed)[-1] == "hf.co/someone/broken:latest"
    assert choice.target is not None and choice.target.manifest is not None
    assert Pair(found=True, reason=choice.reason, draft="a", target="b").found


def test_smollm2_and_the_embedded_pair_are_never_paired(tmp_path: Path) -> None:
    """A store of both embedded models and SmolLM2 gives the embedded pair; without its draft nothing is paired."""
    root = store(tmp_path, {"tiny:draft": DRAFT, "tiny:target": TARGET, "smollm2:135m": smollm2()})
    choice = choose_pair(ollama_models=root)
    assert names(choice) == ("tiny:draft", "tiny:target")
    assert all("smollm2:135m" not in pair.values() for pair in choice.ranked)
    assert {model["name"]: model["loadable"] for model in choice.models} == {
        "tiny:draft": True,
        "tiny:target": True,
        "smollm2:135m": True,
    }
    remove_model(root, "tiny:target")
    choice = choose_pair(ollama_models=root)
    assert (choice.found, choice.ranked) == (False, [])
    assert (
        choice.reason
        == "smollm2:135m has no larger model with its vocabulary: run `ollama pull smollm2:1.7b`"
    )


def test_what_to_pull(tmp_path: Path, files: dict[str, Path]) -> None:
    """Where a target has no draft the reason names the model to pull, or that it is there and why it is of no use."""
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    assert choose_pair(ollama_models=root).found
    alone = "llama3.1:8b has no smaller model with its vocabulary: "
    banned = choose_pair(ollama_models=root, policy=PairPolicy(forbid=("llama3.2:1b",)))
    assert banned.reason == alone + "llama3.2:1b is forbidden by the operator"
    blob = root / "blobs" / f"sha256-{FileFacts().sha256(files['small'])}"
    blob.write_bytes(blob.read_bytes()[:1000])
    partial = choose_pair(ollama_models=root)
    assert partial.reason.startswith(
        alone + "run `ollama pull llama3.2:1b` again, as its download is not complete (1000 of"
    )
    remove_model(root, "llama3.2:1b")
    assert choose_pair(ollama_models=root).reason == alone + "run `ollama pull llama3.2:1b`"
    remove_model(root, "llama3.1:8b")
    add_model(root, "someone/own:1", files["large"])
    assert choose_pair(ollama_models=root).reason == (
        "someone/own:1 has no smaller model with its vocabulary: pull a smaller model of its family with "
        "`ollama pull`, or name a pair with --draft and --target"
    )


def test_a_store_without_a_model(tmp_path: Path, files: dict[str, Path]) -> None:
    """No store, an empty one, and one without a model that can be used say so, and what to pull."""
    pull = "run `ollama pull llama3.1:8b` and `ollama pull llama3.2:1b`"
    none = choose_pair(ollama_models=tmp_path / "none")
    assert (none.found, none.reason) == (False, f"there is no Ollama store: {pull}")
    root = store(tmp_path, {})
    assert choose_pair(ollama_models=root).reason == f"the Ollama store holds no model: {pull}"
    add_model(root, "m:1", files["small"]).write_text("{")
    unusable = "the Ollama store holds no model that can be used (m:1: its manifest is damaged"
    assert choose_pair(ollama_models=root).reason == f"{unusable}): {pull}"
    add_model(root, "n:1", files["small"]).write_text("{")
    assert choose_pair(ollama_models=root).reason == f"{unusable}, and 1 more): {pull}"
    banned = choose_pair(ollama_models=root, policy=PairPolicy(forbid=("m:1", "n:1")))
    assert banned.reason == "every model of the Ollama store is forbidden by the operator"


def test_a_store_that_may_not_be_read(tmp_path: Path, files: dict[str, Path]) -> None:
    """An operator whose store is closed to the agent's user is told that, and how to open it."""
    tmp_path.chmod(0o755)
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    root.chmod(0o700 if os.getuid() == 0 else 0)
    code = """
        from pathlib import Path
        import agent.description, agent.pairs
        # as nobody
        print(agent.pairs.choose_pair(ollama_models=Path("store")).reason)
    """
    try:
        told = as_nobody(code, tmp_path)
    finally:
        root.chmod(0o755)
    assert told == (
        "the agent's user may not read the Ollama store: let it into the group ollama, "
        "or name a store with --ollama-models"
    )


def test_a_part_that_may_not_be_read(tmp_path: Path, files: dict[str, Path]) -> None:
    """Where some of the store is closed and the rest makes no pair, the reason tells both."""
    tmp_path.chmod(0o755)
    root = store(tmp_path, {"hf.co/a/b:1": DRAFT, "llama3.1:8b": files["large"]})
    (root / "manifests/hf.co").chmod(0o700 if os.getuid() == 0 else 0)
    code = """
        from pathlib import Path
        import llama_cpp, agent.llama, agent.description, agent.pairs
        # as nobody
        print(agent.pairs.choose_pair(ollama_models=Path("store")).reason)
    """
    try:
        told = as_nobody(code, tmp_path)
    finally:
        (root / "manifests/hf.co").chmod(0o755)
    assert told == (
        "llama3.1:8b has no smaller model with its vocabulary: run `ollama pull llama3.2:1b`; "
        "the agent's user may not read all of the Ollama store"
    )


def test_what_fits_in_memory(tmp_path: Path, files: dict[str, Path]) -> None:
    """The largest target that fits with its draft is taken; when none does the reason says what is needed and there."""
    big = Gguf(TARGET).write(tmp_path / "big.gguf")
    root = store(tmp_path, {"big:1": big, "large:1": files["large"], "small:1": files["small"]})
    all_fit = choose_pair(ollama_models=root)
    assert names(all_fit) == ("small:1", "big:1")
    whole, lesser = (pair["bytes"] for pair in all_fit.ranked if pair["draft"] == "small:1")
    assert whole > lesser
    exact = choose_pair(ollama_models=root, policy=PairPolicy(memory_bytes=whole))
    assert names(exact) == ("small:1", "big:1")
    below = choose_pair(ollama_models=root, policy=PairPolicy(memory_bytes=whole - 1))
    assert names(below) == ("small:1", "large:1")
    assert [(pair["target"], pair["fits"]) for pair in below.ranked] == [
        ("large:1", True),
        ("big:1", False),
        ("big:1", False),
    ]
    none = choose_pair(ollama_models=root, policy=PairPolicy(memory_bytes=lesser - 1))
    assert not none.found and none.draft is None
    assert none.reason.startswith("no pair fits in memory: small:1 and large:1 need ")
    assert f"{lesser / MIB:.1f} MiB for 4096 tokens of context" in none.reason
    short = PairPolicy(memory_bytes=lesser - 1, context=256)
    assert names(choose_pair(ollama_models=root, policy=short)) == ("small:1", "large:1")


def test_a_draft_too_many_for_memory(tmp_path: Path, files: dict[str, Path]) -> None:
    """Where no two models make a pair, the largest that would fit alone is the one to find a draft for."""
    big = Gguf(TARGET).change("tokenizer.ggml.pre", lambda _: b"qwen2").write(tmp_path / "big.gguf")
    root = store(tmp_path, {"llama3.1:8b": files["large"], "big:1": big})
    assert choose_pair(ollama_models=root).reason.startswith("big:1 has no smaller model")
    some = PairPolicy(memory_bytes=30 * MIB)
    assert choose_pair(ollama_models=root, policy=some).reason.startswith("llama3.1:8b has no smaller model")


@pytest.mark.parametrize(
    ("policy", "pair"),
    [
        ({"pin_draft": "middle:1"}, ("middle:1", "large:1")),
        ({"pin_target": "middle:1"}, ("small:1", "middle:1")),
        ({"pin_target": "registry.ollama.ai/library/MIDDLE:1"}, ("small:1", "middle:1")),
        ({"pin_draft": "small:1", "pin_target": "middle:1"}, ("small:1", "middle:1")),
        ({"pin_draft": "large:1", "pin_target": "small:1"}, ("large:1", "small:1")),
        ({"forbid": ("small:1",)}, ("middle:1", "large:1")),
        ({"forbid": ("LARGE:1", "nothing:1", "no name")}, ("small:1", "middle:1")),
    ],
)
def test_pins_and_bans(
    tmp_path: Path, files: dict[str, Path], policy: dict[str, Any], pair: tuple[str, str]
) -> None:
    """Pinned models are used, forbidden ones never, by whatever spelling of their names."""
    models = {f"{size}:1": files[size] for size in ("small", "middle", "large")}
    choice = choose_pair(ollama_models=store(tmp_path, models), policy=PairPolicy(**policy))
    assert names(choice) == pair
    banned = {model["name"]: model["reason"] for model in choice.models if not model["loadable"]}
    expected = {name.lower() for name in policy.get("forbid", ())} & models.keys()
    assert banned == dict.fromkeys(expected, "forbidden by the operator")


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (
            {"pin_draft": "gone:1"},
            "gone:1, pinned as the draft, is not in the Ollama store: run `ollama pull gone:1`, or",
        ),
        ({"pin_target": "../x"}, "what is pinned as the target is no model's name"),
        ({"pin_target": "broken:1"}, "broken:1, pinned as the target, cannot be used: it is not a GGUF file"),
        (
            {"pin_target": "large:1", "forbid": ("large:1",)},
            "large:1, pinned as the target, cannot be used: forbidden by the operator",
        ),
        (
            {"pin_draft": "small:1", "pin_target": "other:1"},
            "small:1 and other:1 differ in pre-tokeniser (gpt-2 / qwen2)",
        ),
        ({"pin_draft": "small:1", "pin_target": "small:1"}, "the same model is pinned as draft and target"),
        ({"pin_draft": "large:1"}, "large:1 has no larger model with its vocabulary: pull a larger model"),
        ({"pin_target": "small:1"}, "small:1 has no smaller model with its vocabulary: pull a smaller model"),
        (
            {"pin_draft": "small:1", "pin_target": "large:1", "memory_bytes": MIB},
            "no pair fits in memory: small:1 and large:1 need",
        ),
    ],
)
def test_pins_that_cannot_be_followed(
    tmp_path: Path, files: dict[str, Path], policy: dict[str, Any], reason: str
) -> None:
    """A pinned model that is absent or of no use is told as such, and nothing else is chosen in its place."""
    models = {f"{size}:1": files[size] for size in ("small", "large", "other")}
    (tmp_path / "broken").write_bytes(b"not a model")
    root = store(tmp_path, models | {"broken:1": tmp_path / "broken"})
    choice = choose_pair(ollama_models=root, policy=PairPolicy(**policy))
    assert (choice.found, choice.draft, choice.target) == (False, None, None)
    assert choice.reason.startswith(reason)
    assert len(choice.models) == 4


def test_a_banned_model_under_another_name(tmp_path: Path, files: dict[str, Path]) -> None:
    """A model that goes by several names is forbidden by any of them."""
    models = {
        "small:1": files["small"],
        "alias:1": files["small"],
        "middle:1": files["middle"],
        "large:1": files["large"],
    }
    root = store(tmp_path, models)
    choice = choose_pair(ollama_models=root, policy=PairPolicy(forbid=("alias:1",)))
    assert names(choice) == ("middle:1", "large:1")
    assert {model["name"] for model in choice.models if not model["loadable"]} == {"alias:1", "small:1"}


def test_several_names_of_one_model(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is listed under all its names, looked at once, never paired with itself, and shown by its best name."""
    models = {
        "hf.co/a/b:c": files["small"],
        "small:latest": files["small"],
        "someone/large:1": files["large"],
    }
    root = store(tmp_path, models)
    looked: list[str] = []
    real = candidates.look

    def counted(file: ModelFile, facts: FileFacts) -> candidates.Candidate:
        looked.append(file.name)
        return real(file, facts)

    monkeypatch.setattr(candidates, "look", counted)
    choice = choose_pair(ollama_models=root)
    assert names(choice) == ("small:latest", "someone/large:1")
    assert len(choice.ranked) == 1
    assert sorted(model["name"] for model in choice.models) == sorted(models)
    assert len(looked) == 2
    pinned = choose_pair(ollama_models=root, policy=PairPolicy(pin_draft="hf.co/a/b:c"))
    assert names(pinned) == ("hf.co/a/b:c", "someone/large:1")
    assert pinned.draft is not None and pinned.draft.manifest == root / "manifests/hf.co/a/b/c"


def test_a_name_that_is_gone(tmp_path: Path, files: dict[str, Path]) -> None:
    """A manifest written anew for the same model changes nothing; one that is gone does; what is loaded stays whole."""
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    choice = choose_pair(ollama_models=root)
    manifest = root / "manifests/registry.ollama.ai/library/llama3.2/1b"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    assert choose_pair(ollama_models=root) == choice and choice.intact()
    remove_model(root, "llama3.2:1b")
    assert not choose_pair(ollama_models=root).found and choice.intact()


def test_a_blob_that_is_not_what_its_name_says(tmp_path: Path, files: dict[str, Path]) -> None:
    """Once a blob has been hashed and its content is not what its name says, it is of no more use."""
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    facts = FileFacts(tmp_path / "facts.json")
    choice = choose_pair(ollama_models=root, facts=facts)
    assert choice.draft is not None
    content = bytearray(choice.draft.path.read_bytes())
    content[-1] ^= 1
    choice.draft.path.write_bytes(content)
    assert choose_pair(ollama_models=root, facts=facts).found
    facts.sha256(choice.draft.path)
    found = choose_pair(ollama_models=root, facts=facts)
    assert not found.found
    listed = {model["name"]: model.get("reason") for model in found.models}
    assert listed["llama3.2:1b"] == "its content is not what its name says: it is damaged"
    assert found.reason.endswith(
        "run `ollama pull llama3.2:1b` again, as its content is not what its name says: it is damaged"
    )


def test_models_that_are_no_decoders_are_listed(tmp_path: Path, files: dict[str, Path]) -> None:
    """Models for embeddings and recurrent ones are listed with the reason and take part in nothing."""
    made = {}
    for family in ("nomic-bert", "mamba"):
        model = Gguf(DRAFT)
        model.pairs["general.architecture"] = (STRING, family.encode())
        made[f"{family}:latest"] = model.write(tmp_path / family)
    choice = choose_pair(ollama_models=store(tmp_path, made | {"llama3.1:8b": files["large"]}))
    listed = {model["name"]: model.get("reason") for model in choice.models}
    assert listed == {
        "llama3.1:8b": None,
        "mamba:latest": "it is recurrent (mamba), so that refused tokens cannot be taken back",
        "nomic-bert:latest": "it is a model for embeddings, which writes no text",
    }


def test_listings_and_rankings_are_bounded(tmp_path: Path, files: dict[str, Path]) -> None:
    """Of very many models those that can be used are listed first, and the list and the ranking end."""
    made = {f"m:{i}": variant(tmp_path / f"{i}.gguf", grow=100 * i) for i in range(8)}
    root = store(tmp_path, made)
    for i in range(MOST_LISTED):
        name = parse(f"broken:{i}")
        assert name is not None
        write_manifest(root, name, {"layers": []})
    choice = choose_pair(ollama_models=root)
    assert names(choice) == ("m:0", "m:7")
    assert (len(choice.models), len(choice.ranked)) == (MOST_LISTED, MOST_RANKED)
    assert [model["loadable"] for model in choice.models[:9]] == [True] * 8 + [False]
    assert len(PairEvent.model_validate(asdict(choice)).model_dump_json()) < 250_000


def test_a_model_removed_while_it_is_looked_at(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that goes away between listing and reading is listed as gone, and nothing is raised."""
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    real = candidates.look

    def removing(file: ModelFile, facts: FileFacts) -> candidates.Candidate:
        remove_model(root, "llama3.2:1b")
        return real(file, facts)

    monkeypatch.setattr(candidates, "look", removing)
    choice = choose_pair(ollama_models=root)
    assert not choice.found
    assert {model["name"]: model.get("reason") for model in choice.models} == {
        "llama3.1:8b": None,
        "llama3.2:1b": "the file does not exist",
    }


def test_looking_again_reads_nothing(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second choice, in another process even, is made without llama.cpp and gives the same."""
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    first = choose_pair(ollama_models=root, facts=FileFacts(tmp_path / "facts.json"))
    assert first.found

    def refused(*_: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("agent.description._describe", refused)
    assert choose_pair(ollama_models=root, facts=FileFacts(tmp_path / "facts.json")) == first


# Ollama's server


def test_what_the_server_lists_is_compared(tmp_path: Path, files: dict[str, Path]) -> None:
    """Names that one side has alone, and digests that differ, become notes; the choice is the same."""
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    plain = choose_pair(ollama_models=root)
    assert plain.ollama is None
    with ollama_server() as server:
        server.models = {str(model.name): str(model.digest) for model in read_store(root).models}
        same = choose_pair(ollama_models=root, ollama_url=server.url)
        assert same.ollama == {"version": "0.30.1", "tags_match": True, "reason": None}
        assert replace(same, ollama=None) == plain
        server.models = {"llama3.1:8b": "ab" * 32, "elsewhere:1": "cd" * 32}
        other = choose_pair(ollama_models=root, ollama_url=server.url)
    assert other.ollama == {"version": "0.30.1", "tags_match": False, "reason": None}
    assert names(other) == names(plain)
    assert {model["name"]: model.get("note", model.get("reason")) for model in other.models} == {
        "llama3.1:8b": "Ollama's server lists another version of it",
        "llama3.2:1b": "Ollama's server does not list it",
        "elsewhere:1": "Ollama's server has it, this store has not",
    }
    assert [ModelListing.model_validate(model).loadable for model in other.models] == [True, True, False]


def test_without_the_server_the_choice_is_the_same(tmp_path: Path, files: dict[str, Path]) -> None:
    """A server that does not answer changes nothing but that it is told."""
    root = store(tmp_path, {"llama3.1:8b": files["large"], "llama3.2:1b": files["small"]})
    choice = choose_pair(ollama_models=root, ollama_url=f"http://127.0.0.1:{free_port()}")
    assert choice.ollama == {"version": None, "tags_match": None, "reason": "no Ollama server answers"}
    assert replace(choice, ollama=None) == choose_pair(ollama_models=root)

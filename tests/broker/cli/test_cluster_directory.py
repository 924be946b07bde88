"""Directories of `serve --brokers N`, and what is said where another start does not fit them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from barnabas.broker.cli.cluster_directory import brokers_in, left_out, options_for, read_note
from barnabas.broker.cli.serve import main


def cluster(directory: Path, *node_ids: int) -> str:
    """Create the files that brokers with these ids leave in a directory."""
    for node_id in node_ids:
        (directory / f"broker{node_id}").mkdir(parents=True)
        (directory / f"broker{node_id}" / "meta.properties").touch()
    (directory / "broker9").mkdir()  # of no broker that ever began
    (directory / "brokers.json").touch()
    return str(directory)


def test_the_brokers_of_a_directory(tmp_path: Path) -> None:
    assert brokers_in(cluster(tmp_path / "data", 3, 1, 2)) == [1, 2, 3]
    assert brokers_in(str(tmp_path / "nothing")) == []


def test_options_that_start_brokers() -> None:
    assert options_for([1, 2, 3], 1) == "--brokers 3"
    assert options_for([6, 5], 1) == "--brokers 2 --node-id 5"


def test_one_broker_does_not_start_in_the_directory_of_a_cluster(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = cluster(tmp_path / "data", 1, 2, 3)
    before = sorted(Path(directory).rglob("*"))
    assert main(["--data-dir", directory, "--listen", "127.0.0.1:0"], {}) == 2
    assert capfd.readouterr() == (
        "",
        f"barnabas: {directory} is the directory of a cluster, not of one broker: start it with --brokers 3, or choose"
        " another one for a single broker (--data-dir)\n",
    )
    assert sorted(Path(directory).rglob("*")) == before


def test_brokers_of_the_last_start_are_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The others were drained: nobody needs their directories."""
    directory = cluster(tmp_path / "data", 1, 2, 3, 4, 5)
    noted = {"pid": 0, "store_port": 0, "asked": {}, "given": {}}
    (tmp_path / "data" / "brokers.json").write_text(json.dumps(dict.fromkeys("123", noted)))
    assert main(["--data-dir", directory, "--listen", "127.0.0.1:0"], {}) == 2
    assert "start it with --brokers 3, or choose" in capfd.readouterr().err


def test_a_single_broker_refuses_a_cluster_brokers_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor does it change anything there."""
    directory = cluster(tmp_path / "data", 1, 2, 3)
    (tmp_path / "data" / "znodes.sqlite").touch()
    (tmp_path / "data" / "broker2" / ".kafka_cleanshutdown").touch()
    before = sorted(Path(directory).rglob("*"))
    assert main(["--data-dir", f"{directory}/broker2", "--node-id", "2", "--listen", "127.0.0.1:0"], {}) == 2
    assert capfd.readouterr() == (
        "",
        f"barnabas: {directory}/broker2 is a directory of one of a cluster's brokers: start the cluster with"
        f" --brokers 3 --node-id 1 --data-dir {directory}, or choose another one for a single broker (--data-dir)\n",
    )
    main(["--data-dir", f"{directory}/broker2,{tmp_path}/other/broker2", "--listen", "127.0.0.1:0"], {})
    assert f"--data-dir {directory},{tmp_path}/other, or" in capfd.readouterr().err
    main(["--data-dir", f"{directory}/broker7", "--listen", "127.0.0.1:0"], {})  # which is no broker's that it had
    assert "with --brokers 3 --node-id 1 --data-dir" in capfd.readouterr().err
    assert sorted(Path(directory).rglob("*")) == before


@pytest.mark.parametrize(
    "noted",
    [
        "{", "[]", '{"x": {}}', '{"2": []}', "[" * 100_000,
        *(
            json.dumps({"2": {"pid": 1, "store_port": 1, "asked": {}, "given": {}} | other})
            for other in ({"pid": None}, {"pid": -1}, {"pid": 1e999}, {"store_port": 99_999}, {"given": 5})
        ),
    ],
)  # fmt: skip
def test_a_note_that_is_damaged_is_none(tmp_path: Path, noted: str) -> None:
    note = tmp_path / "brokers.json"
    note.write_text(noted)
    with pytest.raises(ValueError, match=r".+"):
        read_note(note)


def test_a_note_has_addresses_alone(tmp_path: Path) -> None:
    note = tmp_path / "brokers.json"
    given = {"listeners": 5, "log.dirs": "elsewhere"}
    note.write_text(json.dumps({"02": {"pid": 7, "store_port": 8, "asked": {}, "given": given, "more": 1}}))
    (noted,) = read_note(note).values()
    assert noted == {"pid": 7, "store_port": 8, "secret_digest": "", "asked": {}, "given": {"listeners": "5"}}
    assert read_note(tmp_path / "none") == {}


def test_left_out_brokers_with_partitions_are_reported(tmp_path: Path) -> None:
    directory = cluster(tmp_path / "data", 1, 2, 3, 4)
    (tmp_path / "data" / "broker3" / "flights-0.f00-delete").mkdir()  # it was drained
    assert list(left_out([directory], [1, 2])) == []
    (tmp_path / "data" / "broker4" / "flights-0").mkdir()
    assert list(left_out([directory], [1, 2, 3, 4])) == []
    assert list(left_out([directory], [1, 2])) == [
        f"broker 4 is not started, and partitions lie in {directory}/broker4: those without another"
        " replica are unavailable. Start with --brokers 4, and drain brokers before you remove them (barnabas brokers"
        " drain 4)"
    ]
    (tmp_path / "data" / "broker1" / "flights-1").mkdir()
    (told,) = left_out([directory], [2, 3])
    assert told.startswith("brokers 1, 4 are not started, ")
    assert "Start with --brokers 4 --node-id 1, and" in told

from collections.abc import Iterator

from benchmarks.model import Figure, Scale, Workload, at_least
from benchmarks.runner import in_turn, of_whole_pairs
from benchmarks.system import BARNABAS, FLOOR, KAFKA, MESH, Server, System


def never_started(settings: object) -> Server:
    raise AssertionError("nothing is started here")


def system(name: str) -> System:
    return System(name, name, never_started)


ALL = [system(MESH), system(KAFKA), system(BARNABAS)]


def workload(ours: list[float], **more: object) -> Workload:
    """One whose figure is 100 for Kafka, and the next of `ours` for Barnabas."""
    values = iter(ours)

    def measure(system: System, scale: Scale) -> Iterator[Figure]:
        yield Figure("rate", next(values) if system.name == BARNABAS else 100, "1/s", (at_least(1),))

    return Workload("W1", "", measure, **more)


def order(measured) -> list[str]:
    return [each.system for each in measured]


def test_pairs_are_measured_in_turn():
    assert order(in_turn(workload([100] * 3), ALL, Scale.QUICK, 3, 7)) == [BARNABAS, KAFKA] * 3


def test_peers_and_the_floor_take_part_where_they_can():
    floor = lambda scale: iter([Figure("rate", 900, "1/s")])  # noqa: E731
    with_all = workload([100], peers=(MESH,), floor=floor)
    assert order(in_turn(with_all, ALL, Scale.QUICK, 1, 1)) == [BARNABAS, KAFKA, MESH, FLOOR]


def test_peers_alone_are_measured_once_and_without_the_floor():
    with_all = workload([], peers=(MESH,), floor=lambda scale: iter([Figure("rate", 900, "1/s")]))
    assert order(in_turn(with_all, [system(MESH)], Scale.QUICK, 3, 5)) == [MESH]


def test_disagreeing_pairs_ask_for_more_up_to_a_bound():
    assert len(list(in_turn(workload([90, 130, 100, 100, 100]), ALL, Scale.QUICK, 2, 5))) == 10
    assert len(list(in_turn(workload([95, 110]), ALL, Scale.QUICK, 2, 5))) == 4
    assert len(list(in_turn(workload([100, 130]), ALL, Scale.QUICK, 2, 5))) == 4


def test_a_run_goes_on_after_its_last_whole_pair():
    before = list(in_turn(workload([90, 130]), ALL, Scale.QUICK, 2, 2))
    whole = of_whole_pairs(before[:-1], [BARNABAS, KAFKA], [])
    assert whole == before[:2]
    rest = list(in_turn(workload([120, 110]), ALL, Scale.QUICK, 3, 3, whole))
    assert [(each.system, each.pair) for each in rest] == [(BARNABAS, 1), (KAFKA, 1), (BARNABAS, 2), (KAFKA, 2)]


def test_a_pair_without_its_floor_is_not_whole():
    with_floor = workload([90, 130], floor=lambda scale: iter([Figure("rate", 900, "1/s")]))
    before = list(in_turn(with_floor, ALL, Scale.QUICK, 2, 2))
    assert of_whole_pairs(before[:-1], [BARNABAS, KAFKA], ["W1"]) == before[:3]
    assert of_whole_pairs(before, [BARNABAS, KAFKA], ["W1"]) == before


def test_a_failure_is_reported_and_the_others_go_on():
    def measure(system: System, scale: Scale) -> Iterator[Figure]:
        yield Figure("first", 1, "s")
        if system.name == BARNABAS:
            raise RuntimeError("the broker did not start")
        yield Figure("second", 2, "s")

    ours, theirs = in_turn(Workload("W1", "", measure), ALL, Scale.QUICK, 1, 1)
    assert (ours.error, len(ours.figures)) == ("RuntimeError: the broker did not start", 1)
    assert (theirs.error, len(theirs.figures)) == ("", 2)

from barnabas.inflight_budget import InflightBudget


class Connection:
    def __init__(self) -> None:
        self.paused = False

    def pause_for_budget(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_from_budget(self) -> None:
        assert self.paused
        self.paused = False


def test_no_connection_is_paused_within_the_limit() -> None:
    budget = InflightBudget(100)
    connections = [Connection() for _ in range(4)]
    for connection in connections:
        budget.report(connection, 25)
    assert budget.used_bytes == 100
    assert not any(connection.paused for connection in connections)


def test_half_of_the_limit_may_be_reserved_before_arrival() -> None:
    budget = InflightBudget(100)
    connection = Connection()
    assert budget.has_room(50)
    assert not budget.has_room(51)
    budget.report(connection, 20)
    assert budget.has_room(30)
    assert not budget.has_room(31)


def test_beyond_the_limit_one_connection_continues() -> None:
    budget = InflightBudget(100)
    first, second, third = Connection(), Connection(), Connection()
    budget.report(first, 90)
    budget.report(second, 90)  # the first to pass the limit is the one that may finish
    budget.report(third, 90)
    budget.report(first, 95)
    assert (first.paused, second.paused, third.paused) == (True, False, True)


def test_the_next_one_is_resumed_when_the_privileged_one_is_done() -> None:
    budget = InflightBudget(100)
    connections = [Connection() for _ in range(3)]
    for connection in connections:
        budget.report(connection, 90)
    budget.report(connections[1], 0)
    running = [connection for connection in connections if not connection.paused]
    assert len(running) >= 1
    for connection in connections:
        budget.report(connection, 0)
    assert budget.used_bytes == 0
    assert not any(connection.paused for connection in connections)


def test_a_connection_resumes_when_its_requests_are_served() -> None:
    budget = InflightBudget(100)
    large, small = Connection(), Connection()
    budget.report(large, 110)
    budget.report(small, 5)
    assert (large.paused, small.paused) == (False, True)
    budget.report(small, 0)
    assert not small.paused
    budget.report(small, 5)
    assert small.paused
    budget.report(large, 0)
    assert not small.paused


def test_requests_beyond_the_limit_finish_one_after_another() -> None:
    budget = InflightBudget(100)
    held = {Connection(): 0 for _ in range(10)}
    finished = 0
    for _ in range(10_000):
        moving = [connection for connection in held if not connection.paused]
        assert moving or not held, "all connections wait for each other"
        if not held:
            break
        for connection in moving:
            if connection.paused:
                continue
            held[connection] += 10
            if held[connection] > 80:
                budget.report(connection, 0)
                del held[connection]
                finished += 1
            else:
                budget.report(connection, held[connection])
        assert budget.used_bytes <= 100 + 10 * 10 + 80
    assert finished == 10

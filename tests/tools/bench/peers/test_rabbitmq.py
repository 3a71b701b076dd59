"""RabbitMQ is started apart from the machine's own."""

from __future__ import annotations

from pathlib import Path

from peers import rabbitmq


def test_every_file_that_it_reads_or_writes_is_in_our_folder() -> None:
    surroundings = rabbitmq.environment(Path("/scratch"), 7001, 7002)

    files = {name: value for name, value in surroundings.items() if name.endswith(("_FILE", "_DIR", "_BASE", "HOME"))}
    assert len(files) == 9
    assert all(value.startswith("/scratch") for value in files.values())


def test_its_node_and_port_mapper_are_its_own_and_stay_on_loopback() -> None:
    surroundings = rabbitmq.environment(Path("/scratch"), 7001, 7002)

    assert (surroundings["ERL_EPMD_PORT"], surroundings["ERL_EPMD_ADDRESS"]) == ("7001", "127.0.0.1")
    assert surroundings["RABBITMQ_DIST_PORT"] == "7002"
    assert "{127,0,0,1}" in surroundings["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    assert "listeners.tcp.1 = 127.0.0.1:7000\n" in rabbitmq.configuration(7000)


def test_the_server_itself_is_started_not_the_wrapper_of_debian(tmp_path: Path) -> None:
    wrapper = tmp_path / "sbin" / "rabbitmq-server"
    itself = tmp_path / "lib" / "rabbitmq" / "bin" / "rabbitmq-server"
    before = rabbitmq.script(wrapper)
    itself.parent.mkdir(parents=True)
    itself.touch()

    assert before == wrapper
    assert rabbitmq.script(wrapper) == itself

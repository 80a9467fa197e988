import random
import socket

from agentrl.utils.network import free_port, interface_of


def test_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None  # an address for documentation (RFC 5737)


def test_a_free_port_differs_from_other_ports_also_with_the_same_seed():
    found = []
    for _ in range(20):
        random.seed(0)
        found.append(free_port())
    assert len({*found}) == len(found)
    for port in found:
        assert 20000 <= port < 30000
        with socket.create_server(("127.0.0.1", port)):
            pass

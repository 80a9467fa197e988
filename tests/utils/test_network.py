from agentrl.utils.network import interface_of


def test_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None  # an address for documentation (RFC 5737)

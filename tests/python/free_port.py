"""Ports for programs that take a port as an argument."""
import socket

RESERVATIONS = []


def free_port():
    """A port at the loopback interface that this process reserves until it ends. Servers can listen on it, because they
    set SO_REUSEADDR as well (base/free_port.h)."""
    reservation = socket.socket()
    reservation.bind(("127.0.0.1", 0))
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    RESERVATIONS.append(reservation)
    return reservation.getsockname()[1]

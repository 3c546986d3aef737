"""Packets that the guest makes by hand, and lies to its neighbour, through a whole VM and its gateway (S-3)."""

import unittest

import test_net_attack as attack

setUpModule, tearDownModule = attack.setUpModule, attack.tearDownModule


class Headers(attack.Headers, attack.Base):
    pass


class Neighbours(attack.Neighbours, attack.Base):
    pass


if __name__ == "__main__":
    unittest.main()

"""Generations 7 and 8, end to end: what was selected for one is refused where the other runs (I-2, R-2)."""

import unittest

from harness import cap, node


class Generations(unittest.TestCase):
    LIMIT_S = 900
    def test_7_and_8(self):
        n = node.shared()
        signer = cap.Signer(n)
        box = n.create()
        try:
            tokens = {}
            for generation in range(1, 9):
                if generation > 1:
                    n.space("start", box)
                claims = signer.claims(box)
                self.assertEqual(claims["gen"], generation)
                tokens[generation] = signer.sign(claims)
                if generation == 7:
                    r = signer.api.forward(signer.sign({**claims, "gen": 8}))
                    self.assertEqual((r.status, r.headers["Space-Refusal"]), (421, "refresh-route"), "8 where 7 is installed")
                for older in range(1, generation):
                    r = signer.api.forward(tokens[older])
                    # The first ones may have expired by now.
                    self.assertEqual(r.status, 421, f"{older} where {generation} is installed")
                self.assertEqual(signer.api.forward(tokens[generation]).status, 204)
            fresh = signer.claims(box, gen=7)
            r = signer.api.forward(signer.sign(fresh))
            self.assertEqual((r.status, r.headers["Space-Refusal"]), (421, "refresh-route"), "7 where 8 is installed")
        finally:
            n.kill(box)


if __name__ == "__main__":
    unittest.main()

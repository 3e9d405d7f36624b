"""A round of three mixes, and what honest ones state of it."""

from silomix_proto import round_pb2
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_protocol.rounds.statements import check_chain, sign_hop

from support.rounds import joined, make_parties, make_round, mixed

Chain = list[round_pb2.HopStatement]

PARTIES = make_parties(silos=6, mixes=3, minimum=3)
STUDY = PARTIES.study
ROUND = make_round(STUDY, PARTIES.keys["server"])
OTHER = make_round(STUDY, PARTIES.keys["server"], 2)
D = ROUND.digest
ONIONS = [ROUND.seal(bytes([place])).sealed for place in range(5)]
MIXED = mixed(PARTIES, ROUND, ONIONS)
LIST = joined([b"one", b"two", b"three", b"four"])


def copy(chain: Chain = MIXED.chain) -> Chain:
    return [round_pb2.HopStatement.FromString(each.SerializeToString()) for each in chain]


def resigned(chain: Chain, digest: RoundDigest = D) -> Chain:
    """What mixes that all lie together could state."""
    return [sign_hop(digest, each, PARTIES.mix_key(hop)) for hop, each in enumerate(chain)]


def check(chain: Chain, hops: int = 3) -> None:
    check_chain(chain, ROUND.descriptor, STUDY, hops)

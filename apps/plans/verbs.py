"""More English verbs than have families: each stands for itself. They tell where a wish begins."""

from typing import Final


def listed(text: str) -> frozenset[str]:
    """The words of a list that reads as prose."""
    return frozenset(text.split())


PLAIN: Final = listed("""
    accept accompany acquire activate adapt adopt advertise afford allocate amend amplify animate announce
    apologize apply appoint appraise archive argue assess assist associate attach attend attract authenticate
    automate bake bind blend blur borrow brainstorm brighten bring browse calibrate caption capture carry
    celebrate chat clarify cleanse climb close coach colorize commission communicate compete compile complain
    complete conclude conduct confer connect construct consult consume contribute control converse convey
    coordinate correct correlate craft curate customize declare decorate deduct deepen define demonstrate denoise
    derive determine develop devise dine disable disclose disconnect discuss dispose distinguish distribute
    diversify divide download dub earn eat edit educate elaborate elevate eliminate embark embellish emphasize
    employ empower enable enact encourage endorse enforce engage enhance enjoy enlarge enlist enrich enroll enter
    entertain equip establish evacuate exclude exhibit expand expedite express extend fabricate facilitate
    familiarize feed fill finalize flip forge formulate foster freeze furnish gauge govern hear imagine imitate
    implement impose incorporate indicate infer inform inquire insert inspire instruct insulate insure integrate
    introduce invert invest isolate join jot judge keep learn leave lend listen livestream load maintain manage
    marry mediate memorize mentor mimic moderate modernize motivate narrate nominate obtain occupy operate
    organise organize originate overlay oversee participate peel perceive personalize persuade polarize populate
    practise preserve prevent prioritize procure promote pronounce prove publish punctuate pursue put qualify quit
    reach realize reassign rebuild recharge recite reclaim recolor reconcile reconstruct recycle reduce refer
    refill refine reformat refresh regulate rehearse reinforce relate relax relay relieve remember remind renew
    renovate replace reproduce require reschedule reserve reside resize resume retain retouch retrace return
    reveal revise revisit reword rinse savor say secure see seek separate settle sharpen shelve shuffle simplify
    sing skip solicit speak specify spend spruce stabilize standardize stitch strengthen subscribe subtract
    supervise suspend swim synthesise tailor take teach throw tokenize tweak understand undertake unfold unify
    unite unpack upscale urge utilize vary verify vet volunteer wake warm wear weigh welcome withdraw wrap wrestle
    """)
"""Verbs that are hardly ever nouns."""

TWOFOLD: Final = listed("""
    access aid award balance bargain bid boost brush buffer bundle cache cast catch certify chain charter click
    clip code comment contact contest cut deal debate decrease deposit dictate discount display drop estimate
    exchange exercise experiment export extract fade file finance finish fit flag fold format frame gain guide
    hand highlight host hunt import increase juggle kick label land lift limit link loan log look lower mail map
    master meet mix mount mute note notice offer outline pace pack paint park pause pick pin plant pledge polish
    practice praise press produce pull quote race raise record refund register remix rent replay reply request
    reuse reverse ride roll sail sample save seal search serve shape shift shoot shop sketch slice slow smooth
    sort speed spell spin sponsor spread squeeze stack stage stamp stretch strip structure style supply support
    surf swap taste tie touch tour trace train transport travel treat trim turn type upgrade view visit voice void
    walk wash watch win work yield zoom
    """)
"""Verbs that are nouns as often."""

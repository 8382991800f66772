"""An intent as clauses: what is named exactly (paths, links, quotes, numbers) is masked first, then the sentence is cut.

Pure text work. A clause keeps its verb's family, the concepts of its object, and what was said about order.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from apps.core.lexical import words
from apps.plans import kinds, lexicon
from apps.plans.verbs import listed

_QUOTES: Final = r'"(?P<q1>[^"]{1,20000})"|“(?P<q2>[^“”]{1,20000})”|„(?P<q3>[^„“”]{1,20000})[“”]|`(?P<q4>[^`]{1,20000})`|«(?P<q5>[^«»]{1,20000})»|(?<!\w)\'(?P<q6>(?:[^\']|(?<=\w)\'(?=\w)){1,20000})\'(?!\w)'
_URL: Final = r"(?P<url>\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"']+)"
_EMAIL: Final = r"(?:(?<![\w.+-])[.+-]*(?P<email>\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b))"
_PATH: Final = r"(?P<path>(?<![\w/.])(?:~?/|\.{1,2}/|[A-Za-z]:[\\/])(?:\\ |[^\s,;:!?\"'<>|])*)"
_FILE: Final = rf"(?P<file>(?<![\w/\\.-])[\w-]+(?:[/\\][\w.-]+)*\.(?:{'|'.join(sorted(lexicon.EXTENSIONS))})\b)"
_DATE: Final = r"(?P<date>\b\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:\d{2})?)?\b)"
_NUMBER: Final = rf"(?P<number>(?<![\w.])-?\d++(?:\.\d++)?+(?:(?![\w.]*\w)|(?=(?:{'|'.join(lexicon.UNITS)})\b)))"
_SPAN: Final = re.compile("|".join((_QUOTES, _URL, _EMAIL, _PATH, _FILE, _DATE, _NUMBER)))

_BLOCK: Final = re.compile(
    r"\b(?:text|content|passage|letter|review|sentence|transcript|following|paragraph|message|story)\s*:\s+(?=[^\s\"'“„`«])",
    re.IGNORECASE,
)

_MASK: Final = re.compile(r"\x02(\d+)\x03")
_PATH_GOES_ON: Final = re.compile(
    r"(?:[ ](?P<words>[^\s/,;:!?\"'<>|]+(?:[ ][^\s/,;:!?\"'<>|]+){0,2}))??[ ]?(?P<tail>[^\s/,;:!?\"'<>|]+/[^\s,;:!?\"'<>|]*)"
)
_NEAR: Final = 120
"""How far around a span its neighbouring words are looked for."""
_GAP: Final = re.compile(r"\s{16,}")
"""More blank than tells anything: each place in it would be looked at anew for what may follow."""
_AHEAD: Final = 240
"""How far it is looked for a verb behind what joins two pieces."""

_BARE_WORD: Final = re.compile(r"[ ](\w+)")

_CUT: Final = re.compile(
    r"(?P<stop>(?<=[\w\x03)\]])[.!?](?=\s|$)|;|\n+|(?<=\w):(?=\s+(?:please|can\s+you|could\s+you|i\s|we\s)))"
    r"|(?P<then>,?\s*\b(?:and\s+then|and\s+after\s+that|and\s+finally|after\s+(?:that|which|this)|afterwards|thereafter|subsequently|finally|then|followed\s+by|before)\b,?)"
    r"|(?P<but>,?\s*\b(?:but|instead)\b(?:\s+(?:rather|instead|only|just))?,?\s+)|(?P<only>,\s*(?:only|just)\s+)"
    r"|(?P<and>,?\s*(?:\band\b|\bas\s+well\s+as\b|\bplus\b|&)\s+(?:also\s+)?|,\s+(?:also\s+)?)",
    re.IGNORECASE,
)
_LEAD: Final = re.compile(
    r"^(?:please|kindly|hey|hi|hello|ok(?:ay)?|so|also|first(?:ly)?|next|secondly|lastly|now|just|and|then|"
    r"(?:do\s+you\s+think\s+)?(?:(?:can|could|would|will)\s+(?:you|somebody|someone)|you\s+(?:could|can)(?=.*\?\s*$))(?:\s+(?:please|kindly|perhaps|maybe|possibly))?(?:\s+mind)?|"
    r"(?:i|we)(?:['\u2019]d|\s+would)\s+(?:(?:really|very\s+much)\s+)?(?:like|love|prefer|appreciate)(?:\s+(?:it\s+if\s+)?you(?:\s+could)?)?(?:\s+to\b|(?=\s+\w+ing\b))|"
    r"(?:i|we)\s+(?:want|need|have|wish)(?:\s+you)?\s+to|(?:i\s+was|i['\u2019]m|i\s+am|we\s+were|we\s+are)\s+(?:wondering|hoping)\s+(?:if\s+|that\s+)?you\s+(?:could|can|would)|"
    r"(?:i['\u2019]m|i\s+am|we['\u2019]re|we\s+are)\s+(?:trying|looking|going)\s+to|(?:i['\u2019]m|i\s+am|we['\u2019]re|we\s+are)(?=\s+(?:looking|searching)\s+for\b)|"
    r"(?:is|would)\s+it\s+(?:be\s+)?possible\s+(?:for\s+you\s+)?to|(?:are\s+you|be)\s+able\s+to|be\s+so\s+(?:kind|good)\s+(?:as\s+to|and)|do\s+me\s+a\s+favou?r\s+and|go\s+ahead\s+and|help\s+me(?:\s+to)?|let(?:'s|\s+us)|your\s+task\s+is\s+to|you\s+should|try\s+to|go\s+and|to)\b[\s,:]*",
    re.IGNORECASE,
)
_NEVER: Final = re.compile(
    r"\b(?:(?:do|does|must|should|shall|may|need|(?:you|one|they)\s+(?:can|could|will|would))\s*(?:not|n['\u2019]?t)\b|never\b|without\b(?!\s+(?:the|its|their|those|these)\s)|but\s+not\b|not\s+to\b"
    r"|(?:not|n['\u2019]t)\s+(?:allowed|permitted|supposed|meant)\b|instead\s+of\b|rather\s+than\b|no\s+need\s+to\b|neither\b|nor\b"
    r"|(?:under|in|on|by)\s+no\s+(?:circumstances?|means|account|case)\b|forbid(?:s|den)?\b|prohibit(?:s|ed)?\b|disallow(?:s|ed)?\b"
    r"|(?:is|be)\s+(?:\w+\s+)?(?:wrong|unwise|illegal|dangerous|a\s+mistake)\s+to\b)"
    r"|(?:^|\b(?:and|but|or|please|must|should|to)\s|,)\s*(?:avoid|refrain\s+from|abstain\s+from|beware\s+of)\b|^\W*(?:nobody|no[ -]one)\b",
    re.IGNORECASE,
)
_ASIDE: Final = re.compile(
    r"(?P<before>(?:^|(?<=[.;!?\n]\s))[^.;!?\n,]{1,200}),\s*(?P<ban>without\s[^.;!?\n,]{1,80}),\s+(?P<after>[^.;!?\n]{1,400})",
    re.IGNORECASE,
)
"""A wish that is interrupted by what it rules out."""
_JOINS: Final = re.compile(r"(?:and|or|but|then|nor|so)\b", re.IGNORECASE)
_FORBIDS: Final = re.compile(r"\W*(?:please\W+)?(?:do\s+not|don['\u2019]?t|never)\b", re.IGNORECASE)
"""How somebody is told not to do something: what is just to be done instead may follow."""
_REACHES_NOT: Final = re.compile(r"without|instead|rather|but", re.IGNORECASE)
"""How a ban begins that rules out what it names and no more; others reach to the end of the sentence."""
_CONDITION: Final = re.compile(
    r"\b(?:if|unless|whenever|in\s+(?:the\s+|any\s+)?case|in\s+the\s+event|as\s+soon\s+as|(?:as|so)\s+long\s+as|until|otherwise|depending\s+on|on\s+(?:the\s+)?condition"
    r"|(?:provided|providing|assuming|supposing)\s+(?:that|the|he|she|it|they|we|you|i)|every\s+(?:\w+\s+)?(?:minute|hour|day|night|morning|evening|week|month|year|monday|"
    r"tuesday|wednesday|thursday|friday|saturday|sunday)|(?:hourly|daily|weekly|monthly)(?=\W*$|,|\s+(?:at|on|in|from|until)\b))\b"
    r"|^(?:hourly|daily|weekly|monthly)\b"
    r"|^(?:when|once)\b(?!\s+(?:(?:you|it|that|this|they|all|everything)\b\W*(?:(?:s|re|is|are|has|have)\b\s*)?(?:been\s+)?)?(?:done|finished|completed?|ready)\b)"
    r"|^(?:should|were|had)\s|^(?:only\s+)?after\s+(?!(?:that|which|this)\b)(?:[\w'\u2019-]+\s+){1,4}?(?:has|have|had|is|are|was|were)\b",
    re.IGNORECASE,
)
_COURTESY: Final = re.compile(
    r"\bif\s+(?:(?:at\s+all\s+)?possible|you\s+(?:can|could|please|like|want|wish|will|would|may|have\s+(?:the\s+|a\s+)?(?:time|minute|moment)"
    r"|(?:don['\u2019]?t|do\s+not|wouldn['\u2019]?t)\s+mind)|need(?:ed)?(?:\s+be)?|necessary)\b",
    re.IGNORECASE,
)
"""Conditions that only ask kindly, where nothing is changed."""
_WHETHER: Final = re.compile(
    r"\b(?:see|check|know|tell\s+(?:me|us)|determine|find\s+out|verify|ask|learn|(?:what|how|why|where|who|whom|which)\b[^.;]{0,240}?)\s+(?:if|when)\b",
    re.IGNORECASE,
)
"""What is asked about, and is no condition of the wish."""
_CAUSES: Final = re.compile(
    r"make\s+(?:\x02|it\b|them\b|everything\b|everyone\b|(?:the|this|that|these|those|my|our|your|his|her|their|its|all|every|each)\s+(?P<what>\w+))",
    re.IGNORECASE,
)
_TELLS: Final = re.compile(
    r"(?:tell|inform|(?:write|drop)(?:\s+(?:an?\s+(?:\w+\s+)?(?P<what>line|note|letter|message|e-?mail|mail)\s+)?to)?|let(?=\s+\S+\s+know\b))\s+\x02(?P<to>\d+)\x03",
    re.IGNORECASE,
)
"""How one is told something whose address follows."""
_GETS: Final = re.compile(
    r"\x02(?P<to>\d+)\x03\s+(?:should|shall|must|(?:needs?|ought|has|is)\s+to)\s+(?:get|receive|be\s+(?:sent|given))\b",
    re.IGNORECASE,
)
"""How somebody is to be sent something whose address comes first."""
_SUBJECT: Final = re.compile(
    r"\s*(?P<subject>(?:(?:the|this|that|my|our)\s+)?(?:[\w-]+\s+){0,3}?(?:(?:at|in|on|under)\s+)?\x02\d+\x03)"
    r"\s+(?:is|are|was|were|has|have|had|can|could|may|might|should|must|needs?)\b(?P<said>[^\x02]{0,80})",
    re.IGNORECASE,
)
_TO_IT: Final = re.compile(r"(?:(?:so|then|please|kindly|just|now)\s+)*[a-z]+\s+(?:it|them)\b", re.IGNORECASE)
_MASK_OR_REST: Final = re.compile(r"\x02?[0-9]+\x03")
"""A mark of something named exactly, whole or without its beginning."""
_A_LINE: Final = re.compile(r"^\W*an?\s+(?:line|note)\b", re.IGNORECASE)
_LINE: Final = re.compile(r"^\W*(?:know\b|an?\s+(?:\w+\s+)?(?:line|note|message)\b)", re.IGNORECASE)
_INVERTED: Final = re.compile(
    r"^(?:which|what)\s+(?P<what>(?:[\w-]+\s+){0,3}?[\w-]+)\s+(?:do|does|did)\s", re.IGNORECASE
)
_SOUGHT: Final = re.compile(r"\bfor\s+(?P<what>.+)$", re.IGNORECASE | re.DOTALL)
_COMMANDS: Final = re.compile(
    r"[a-z][\w-]*\s+(?:the|a|an|my|our|your|his|her|their|this|these|those|all|every|each|any|some|it|them|everything)\b",
    re.IGNORECASE,
)
"""A word before an article, at the beginning: a verb, known or not."""
_NO_VERBS: Final = listed("""
    not even like unlike because since unless until whenever where what that except plus besides despite once
    only respectively instead always never perhaps maybe quite half
    """)
"""Words that stand before an article as well, and are none."""
_JOINT: Final = re.compile(
    r"\s*(?:,\s*|,?\s*(?:\b(?:and|plus|as\s+well\s+as)\b|&)\s*(?P<as>(?:[a-z]+\s+){0,4}))", re.IGNORECASE
)
"""What stands between things that are named side by side."""
_LIKENED: Final = re.compile(r"(?<=\x03)\s+(?:sounds?|looks?|feels?|seems?|reads?)\b", re.IGNORECASE)
_EITHER: Final = re.compile(
    r"^(?:is|are|was|were|does|do|did)\b.*?\b(?P<one>\w+)\s+or\s+(?P<other>\w+)", re.IGNORECASE | re.DOTALL
)
"""A question for one of two answers."""
_CALLED: Final = re.compile(r"\b(?P<what>[a-z]+)\s+(?:(?:at|on|from|under)\s+)?\x02(?P<span>\d+)\x03")
_DEED: Final = re.compile(
    r"\W*(?:(?:an?|the|some|another|me|us)\s+)*(?P<kind>(?:[a-z]+\s+){0,2}?)(?P<deed>[a-z]+)\s+(?:of|for|from|on)\b",
    re.IGNORECASE,
)
_DOING: Final = frozenset({"create", "build", "execute", "write", "research"})
"""Families of verbs that with a deed's name mean the deed: to build an index is to index."""
_ASKS: Final = frozenset({"to", "and", "please", "you", "then", "i", "we"})
_HAVING: Final = frozenset({"want", "need", "like", "have", "get", "see"})
_HAVING_WORDS: Final = 4
_TO_HAVE: Final = re.compile(r"^.*?\b(?:want|need|like|have|get|see)\b", re.IGNORECASE | re.DOTALL)
_LETTING: Final = frozenset({"have", "get"})
"""What a wish begins with that something be done, in whatever form the deed is said: have the tests run."""
_NO_OBJECT: Final = frozenset({"the", "a", "an", "to", "of", "my", "our", "your", "their", "already", "been", "never"})
"""What stands before a noun, an infinitive or what was done before, and not before what is to be done."""
_AT_THE_END: Final = re.compile(r"(?:\s+(?:for\s+(?:me|us)|please|now|thanks|thank\s+you))+$")
_PERFECT: Final = re.compile(
    r"(?:i|we|he|she|they|it)\s+(?:have|has|had|ve)\s+(?:already|just|now|also|since|recently|never|not|\s)*\w+ed\b"
)
"""What is told to have been done, and is not asked for."""
_LIES_THERE: Final = re.compile(
    r"(?:(?:see|show|tell|know|give)\s+(?:(?:me|us)\s+)?)?what(?:['\u2019]s|\s+is|\s+are|\s+lies)?\s+(?:there\s+|stored\s+|located\s+)?(?:in|inside|under|at)\s+\x02(?P<place>\d+)\x03\W*$",
    re.IGNORECASE,
)
"""A question for what is in a place, without a word of what kind of thing that could be."""
_VERSIONS: Final = frozenset({"version", "translation", "equivalent"})
_TURNED: Final = frozenset({"in", "into", "to"})
_THAT: Final = frozenset({"it", "that", "this", "them"})
_SAYING: Final = frozenset(
    {"put", "say", "visualize", "express", "convert", "turn", "bring", "rewrite", "write", "mean"}
)
_SAID: Final = frozenset(
    {"say", "said", "mean", "phrase", "expression", "term", "line", "put", "render", "express", "turn", "bring", "like"}
)
_DEFERRED: Final = re.compile(
    r"\b(?:when|once|after|before|upon|only\s+(?:with|by|at)|provided|with\s+(?:my|our|his|her|their|your)\s+(?:approval|consent|permission)|as\s+long)\b",
    re.IGNORECASE,
)
"""What in a wish that changes the world lets it wait for something."""
_EXCEPTION: Final = re.compile(
    r"\b(?:except(?:ing|ions?)?|excluding|(?:apart|aside)\s+from|without\s+(?:the|its|their|those|these)|other\s+than|besides|save\s+for|not|"
    r"(?:all|each|any\w*|every\w*|no\w*)\b[^.;]{0,80}?\bbut)\b",
    re.IGNORECASE,
)
_EMBEDS: Final = re.compile(
    r"\b(?:how|why|whether|what|who|whom|whose|where)\b|\b(?:said|says|told|asked|asks|wants|wanted|thinks|thought|believes|claims|claimed|"
    r"wrote|suggests|suggested|recommends|recommended|proposed|ordered|demanded|insists)\b",
    re.IGNORECASE,
)
_OWN_WORD: Final = re.compile(r"\b(?:i|we)\s+(?:\w+\s+)?$", re.IGNORECASE)
_STATES: Final = re.compile(
    r"\b(?:is|are|was|were|be|has|have|had|may|might|can|could|must|should|shall|will|would)\b", re.IGNORECASE
)
_FINITE_NEXT: Final = re.compile(
    r"(?<=\x03)\s+(?P<said>(?:is|are|was|were|has|had|would|could|might|may|must|should|can|will)(?:n['\u2019]t)?)\b(?!\s+you\b)",
    re.IGNORECASE,
)
"""What makes a statement of words that begin like a wish: send a letter to X was on the list."""
_TAKES_BACK: Final = re.compile(
    r"(?:(?:oh|no|nope|wait|sorry|actually|hmm|well|but|please|or(?:\s+rather)?|(?:on|upon)\s+(?:second|reflection)(?:\s+thoughts?)?)\b[\s,.\u2026-]*)*"
    r"(?P<said>no|nope|(?:do\s+not|don['\u2019]?t)(?:\s+bother)?|never\s*mind(?:\s+(?:that|this|it))?|(?:scratch|cancel|forget|ignore|disregard|skip|strike)\s+(?:that|this|it|about\s+(?:that|it)|(?:the|what\s+i)\s+\w+)"
    r"|(?:i\s+(?:was|am)|i['\u2019]m)?\s*(?:just|only)\s+(?:kidding|joking)|(?:i\s+(?:was|am)|i['\u2019]m)\s+(?:kidding|joking)|kidding|joking"
    r"|(?:that|this|it)\s*(?:was|is|['\u2019]s)\s+(?:just\s+|only\s+)?an?\s+(?:joke|mistake|example|test|typo)|i\s+(?:have\s+)?changed\s+my\s+mind)",
    re.IGNORECASE,
)
"""A sentence that takes back what was asked for before it."""
_POLITE: Final = re.compile(r"\b(?:can|could|would|will)\s+(?:you|somebody|someone)\b|\bplease\b", re.IGNORECASE)
_TO_BE: Final = re.compile(
    r"\b(?:must|should|shall|(?:need|needs|has|have|is|are)\s+to)\s+be\s+(?P<done>[a-z]+)\b", re.IGNORECASE
)
_CIRCUMSTANCE: Final = re.compile(
    r"(?:(?:i|we|he|she|they|there|here|this|it)\s*(?:have|has|had|'ve|is|are|was|were|am|'m|'s)|since|because|as|for|given|while|although|though|due\s+to|in\s+order|during|regarding|considering|after|with|on|at|in)\b",
    re.IGNORECASE,
)
"""How a clause begins that tells what there is, why or when, and asks for nothing."""
_REASON: Final = re.compile(
    r"(?:(?:i|we|he|she|they|there|here|this|it)\s*(?:have|has|had|['\u2019]ve|is|are|was|were|am|['\u2019]m|['\u2019]s)|since|because|as|for|given|due\s+to|considering)\b",
    re.IGNORECASE,
)
_THANKS: Final = frozenset(
    {
        "great",
        "cheers",
        "regards",
        "regard",
        "appreciate",
        "appreciated",
        "thanks",
        "ok",
        "okay",
        "urgent",
        "best",
        "wonderful",
    }
)
_ARTICLES: Final = frozenset(
    {"the", "a", "an", "my", "our", "your", "his", "her", "their", "this", "that", "some", "of"}
)
_NAMED: Final = re.compile(r"(?<=[a-z0-9,'] )[A-Z][\w'&-]*")
_RELATING: Final = "at|in|on|from|for|of|to|with|into|onto|under|inside|within|by|against|using|via|as"
_RELATING_TOO: Final = "through|over|across|among|between|during|per|toward|towards"
_PREPOSITION: Final = re.compile(rf"\b(?:{_RELATING}|about|located|stored|that|which)\b", re.IGNORECASE)
_OF: Final = re.compile(r"\bof\b", re.IGNORECASE)
_PHRASE: Final = re.compile(
    rf"\b(?P<word>{_RELATING}|{_RELATING_TOO}|about|located|stored|that|which|who|like|but)\b", re.IGNORECASE
)
_WAYS: Final = frozenset({"with", "using", "via", "into"})
_RELATES: Final = frozenset({"that", "which", "who"})
_OF_OURS: Final = re.compile(r"\s*(?:i|we)\b", re.IGNORECASE)
"""What something named exactly is to who asks, and restricts nothing: the project PATH that we work on."""
_BELONGS: Final = frozenset({"of", "for", "to"})
"""What such a phrase names may be told exactly by the one after it: of the shop at PATH, to the accountant at ADDRESS."""
_TELLS_WHICH: Final = frozenset({"of", "for", "from"})
"""How a phrase begins that may tell which of several things is meant: the invoice of the Miller account."""
_NO_NAMES: Final = frozenset({"i"}) | lexicon.HUMAN_LANGUAGES | lexicon.PROGRAMMING_LANGUAGES
"""What is written with a capital, and tells nothing apart."""
_NUMBERED: Final = re.compile(r"[a-z#.]\s*\x02\d+\x03\s*$", re.IGNORECASE)
_NUMBERING: Final = re.compile(r"\b(?:number|no|nr)\b\.?(?=\s*\x02)", re.IGNORECASE)
"""A word that only brings in a number."""
_PAST: Final = frozenset({"last", "previous", "past", "yesterday"})
"""What makes a time one that a thing is from, and none to wait for."""
_ARTICLE: Final = re.compile(r"\s*(?:\b(?:the|an?|this|that|my|our|your|his|her|their|its)\b\s*)+", re.IGNORECASE)
_TOKEN: Final = re.compile(r"\x02\d+\x03|[^\W_](?:[\w'\u2019&-]*[^\W_])?")
_ADVERBS: Final = frozenset(
    {"again", "instead", "anyway", "alone", "together", "online", "offline", "away", "back", "home"}
)
_DATA: Final = frozenset({"number", "date"})
_LIES: Final = frozenset({"at", "in", "under", "inside", "within", "located", "stored", "on"})
_OPENS: Final = re.compile(rf"\W*(?:{_RELATING}|{_RELATING_TOO}|after|before|upon)\b", re.IGNORECASE)
"""How a phrase begins that may stand before the verb: on Windows, run the tests."""
_TAKES: Final = re.compile(r"\W*(?:please\s+)?take\s+[^\x02]{0,80}\x02\d+\x03\W*$", re.IGNORECASE)
"""What is only named by it, for the part after it: take the photo PATH and resize it."""
_INTRODUCED: Final = re.compile(
    r",?\s*\b(?:whose\s+(?:e-?mail\s+)?(?:address|path|location|link)\s+is"
    r"|(?:that|which)\s+(?:(?:is|are|lies?)\s+(?:(?!(?:no|not|never|hardly|barely)\b)\w+\s+){0,2}(?:at|in|inside|within|under|on)|says?|reads?|states?))\s*:?\s*(?=\x02)",
    re.IGNORECASE,
)
"""What only brings in what is named exactly: whose address is ADDRESS, that lies in PATH, which says TEXT."""
_ADDRESSED: Final = re.compile(
    r"\b(?:to|for)\s+(?:[^\W\d_][\w'\u2019-]*\s+){1,4}?(?:at|under|on)\s+\x02(?P<address>\d+)\x03", re.IGNORECASE
)
"""Somebody by name, with the address."""
_GIVES_REASON: Final = re.compile(r"\s*(?:it|they|we|i|he|she|this|that|these|those|there|you)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something named exactly, with the words before it and after it."""

    number: int
    kind: str
    value: str
    written: str = ""
    """As it stands in the intent, with its quotation marks."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    doubtful: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One wish of the intent."""

    number: int
    text: str
    verb: str | None
    head: tuple[str, ...]
    rest: tuple[str, ...]
    words: tuple[str, ...]
    spans: tuple[Span, ...] = field(default=())
    after_previous: bool = False
    forbidden: bool = False
    conditional: bool = False
    circumstance: bool = False
    doubt: str = ""
    """Why it is not plain that this is asked for: what changes the world is not done on such words."""
    exception: str = ""
    """The word from which on something is taken out of what is asked for."""
    sought: tuple[str, ...] = ()
    """What a search is for, where it is said."""
    asks: bool = False
    """Does a question mark end it?"""
    opening: tuple[str, ...] = ()
    """What is said before the verb, set off by a comma: of how, where or for whom."""
    values: frozenset[str] = frozenset()
    """Concepts that are values rather than matter: names, times."""
    masked: str = ""
    """The text with the kinds of what it names exactly in the place of their values, without what opens it."""
    written: str = ""
    """The text as it stands in the intent: with quotation marks, and with the word that rules it out."""
    marked: str = ""
    """The text with a mark in the place of each thing that is named exactly."""
    described: str = ""
    """What it is about, as it was said, where a name, a number or a past time tells which one is meant."""

    @property
    def qualifiers(self) -> list[str]:
        """The words that say how, where or for whom it is to be done, and that introduce nothing that is named exactly."""
        return list(_qualifiers(self.marked))

    @property
    def ways(self) -> list[str]:
        """The words that say by what means it is to be done, or into what something is to go."""
        return [
            word for relation, phrase in _phrases(self.marked) if relation in _WAYS for word in _loose_words(phrase)
        ]

    @property
    def conjoined(self) -> list[tuple[Span, ...]]:
        """What is named exactly side by side, one like the other: in /a and /b."""
        return list(_conjoined(self.marked, self.spans))

    @property
    def concepts(self) -> frozenset[str]:
        """What the clause speaks of, its verb included."""
        spoken = {*self.head, *self.rest}
        return frozenset(spoken | {self.verb} if self.verb else spoken)


@dataclass(frozen=True, slots=True)
class Reading:
    """An intent's clauses, and its skeleton: all that it says but for the values of what it names exactly."""

    clauses: tuple[Clause, ...]
    text: str
    """With a mark in the place of each thing that is named exactly."""
    spans: tuple[Span, ...]

    @property
    def masked(self) -> str:
        """The text with the kinds of what it names exactly in the place of their values."""
        return _kinds(self.text, self.spans)


def read(intent: str) -> Reading:
    """Cut an intent into its clauses."""
    masked, spans = _mask(unicodedata.normalize("NFC", intent))
    masked = _GAP.sub(lambda gap: "\n" if "\n" in gap[0] else " ", masked)
    cut = _cut(_ASIDE.sub(_moved_behind, masked))
    found = [part for piece in _situated_pieces(_in_order(cut)) for part in _prohibitions(piece)]
    clauses: list[Clause] = []
    for part in found:
        clause = _clause(part, spans, len(clauses))
        if clause.words or clause.spans:
            clauses.append(clause)
    return Reading(tuple(clauses), masked, spans)


def _moved_behind(found: re.Match[str]) -> str:
    """A ban that interrupts a wish, put behind it; what begins another wish is left where it is."""
    if _begins_with_verb(found["after"]) or _JOINS.match(found["after"]):
        return found[0]
    return f"{found['before']} {found['after']}, {found['ban']}"


def is_directory(span: Span) -> bool:
    """Is it a path whose last part has no ending, so that it may be of a place rather than of one file?"""
    return span.kind == "path" and "." not in re.split(r"[/\\]", span.value)[-1]


def restricts(clause: Clause) -> bool:
    """May a clause that asks for nothing hold back what was asked for before it? Thanks and reasons do not."""
    said = set(clause.words) - lexicon.STOP
    return bool(said - _THANKS) and _REASON.match(clause.text) is None


def masked(text: str) -> str:
    """The text with the kinds of what it names exactly in the place of their values: the rest says what is to be done."""
    return _kinds(*_mask(unicodedata.normalize("NFC", text)))


def without_names(masked: str) -> str:
    """A masked text without what is written as a name."""
    return _NAMED.sub(" ", masked)


def _kinds(masked: str, spans: tuple[Span, ...]) -> str:
    return _MASK.sub(lambda match: f" {spans[int(match[1])].kind} ", masked)


def _mask(text: str) -> tuple[str, tuple[Span, ...]]:
    out: list[str] = []
    spans: list[Span] = []
    at = 0
    text = text.replace("\x02", " ").replace("\x03", " ")
    block = _BLOCK.search(text)
    while match := _SPAN.search(text, at):
        if block is not None and block.end() <= match.start():
            break
        kind, value, end = _read_span(text, match)
        out.append(text[at : match.start()])
        if value:
            out.append(f"\x02{len(spans)}\x03")
            doubtful = kind == "path" and _runs_into_word(text, end)
            written = text[match.start() : end]
            spans.append(Span(number=len(spans), kind=kind, value=value, written=written, doubtful=doubtful))
        else:
            out.append(text[match.start() : end])
        at = end
        if block is not None and block.start() < at:
            block = _BLOCK.search(text, at)
    if block is not None:
        value = text[block.end() :].strip()
        spans.append(Span(number=len(spans), kind="quoted", value=value, written=value))
        return "".join([*out, text[at : block.end()], f"\x02{len(spans) - 1}\x03"]), tuple(spans)
    return "".join([*out, text[at:]]), tuple(spans)


def _read_span(text: str, match: re.Match[str]) -> tuple[str, str, int]:
    kind, value = next((name, value) for name, value in match.groupdict().items() if value is not None)
    if kind.startswith("q"):
        return "quoted", value.strip(), match.end()
    if kind == "path":
        return _read_path(text, match)
    if kind == "url":
        trimmed = value.rstrip(".,;:!?)")
        return kind, trimmed, match.start() + len(trimmed)
    return "path" if kind == "file" else kind, value, match.end()


def _read_path(text: str, match: re.Match[str]) -> tuple[str, str, int]:
    """An unquoted path ends at the space, unless the words that follow lead to another slash of the same path."""
    end = match.end()
    while going := _PATH_GOES_ON.match(text, end):
        between = (going["words"] or "").casefold().split()
        if going.start() == going.end() or any(
            _PREPOSITION.fullmatch(w) or w in {"and", "or", "then", "but"} for w in between
        ):
            break
        tail = going["tail"].split("/")[0].casefold()
        if (
            text[end : end + 1] != " "
            or _PREPOSITION.fullmatch(tail)
            or tail.endswith(":")
            or tail in {".", "..", "~", "and", "or"}
        ):
            break
        end = going.end()
    value = text[match.start() : end].rstrip(".,;:!?)")
    end = match.start() + len(value)
    if value in {"/", "~", "~/"} and text[end : end + 1].isalnum():
        return "path", "", end
    return "path", value.replace("\\ ", " "), end


def _runs_into_word(text: str, end: int) -> bool:
    following = _BARE_WORD.match(text, end)
    if following is None:
        return False
    word = following[1].casefold()
    return word not in lexicon.STOP and not _PREPOSITION.fullmatch(word) and lexicon.verb(word) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What stands between two cuts, with how it hangs together with what came before it in its sentence."""

    text: str
    ordered: bool = False
    opens: bool = True
    """Does a sentence, or a contrast, begin with it?"""
    joined: bool = False
    """Is it joined by a bare `and`, so that it may belong to whatever the piece before is about?"""
    in_list: bool = False
    """Is it a line of a list under the line before?"""
    asks: bool = False
    """Does a question mark end it?"""
    opening: str = ""
    """A phrase before its verb, set off by a comma."""
    later: bool = False
    """Is it to be done after what follows: before you do this, do that?"""
    ban: str = ""
    """The word before it that rules it out as well."""
    doubt: str = ""


def _cut(masked: str) -> Iterator[_Piece]:
    """Yield each piece between sequencing words, stops, and `and` or `but` before a verb."""
    start, ordered, opens, joined, in_list, opening, later = 0, False, True, False, False, "", False
    for match in _CUT.finditer(masked):
        following = masked[match.end() : match.end() + _AHEAD]
        if (match["and"] or match["but"] or match["only"]) is not None and not (
            _begins_with_verb(following) or (match["and"] is not None and _commands(following))
        ):
            continue
        text = masked[start : match.start()]
        if match["only"] is not None and not _FORBIDS.match(text):
            continue
        if match["and"] is not None and (named := _spoken_of_before(text, following)):
            opening, start = f"{opening} {named}".strip(), match.end()
            continue
        if match["and"] is not None and _is_opening(text, is_set_off=match["and"].strip() == ","):
            opening, start = f"{opening} {text}".strip(), match.end()
            continue
        asks = (match["stop"] or "").strip() == "?"
        yield _Piece(
            text=text,
            ordered=ordered,
            opens=opens,
            joined=joined,
            in_list=in_list,
            asks=asks,
            opening=opening,
            later=later,
        )
        opening = ""
        later = (
            match["then"] is not None and opens and not text.strip() and match["then"].strip().casefold() == "before"
        )
        empty = not text.strip(" ,")
        ordered = match["then"] is not None or (ordered and empty)
        opens = (match["stop"] or match["but"] or match["only"]) is not None or (opens and empty)
        joined = match["and"] is not None and not match["and"].lstrip().startswith(",")
        in_list = match["stop"] == "\n" and (in_list or text.rstrip().endswith(":"))
        start = match.end()
    asks = masked[start:].rstrip().endswith("?")
    yield _Piece(
        text=masked[start:],
        ordered=ordered,
        opens=opens,
        joined=joined,
        in_list=in_list,
        asks=asks,
        opening=opening,
        later=later,
    )


def _in_order(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """With what is to be done before something before it."""
    held: _Piece | None = None
    for piece in pieces:
        if held is not None and not piece.opens:
            yield replace(piece, ordered=False, opens=held.opens)
            yield replace(held, ordered=True, opens=False)
            held = None
            continue
        if held is not None:
            yield held
        held = piece if piece.later else None
        if held is None:
            yield piece
    if held is not None:
        yield held


def _spoken_of_before(text: str, following: str) -> str:
    """What a plain statement names exactly, where what follows asks for something to be done to it: PATH is old, delete it."""
    found = _SUBJECT.fullmatch(text)
    if found is None or not _TO_IT.match(following):
        return ""
    restricts = (_CONDITION, _NEVER, _DEFERRED, _EMBEDS, _PHRASE)
    if any(one.search(found["said"]) for one in restricts) or lexicon.TIMES.intersection(words(found["said"])):
        return ""
    return found["subject"]


def _is_opening(text: str, *, is_set_off: bool) -> bool:
    """Does it only name something for the verb after it, or is it a phrase with a preposition and no verb, or mere kindness?"""
    if _TAKES.match(text):
        return True
    if not is_set_off:
        return False
    if _COURTESY.fullmatch(_stripped(text)):
        return True
    begins = _OPENS.match(text)
    if begins is None or any(one.search(text.strip()) for one in (_STATES, _CONDITION, _NEVER)):
        return False
    spoken = words(_MASK.sub(" ", text))
    return not (spoken[0] == "as" and _GIVES_REASON.match(text, begins.end())) and not _has_verb(spoken)


def _situated_pieces(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """Add what reaches from one piece into the next: a ban, what somebody else says, what is only spoken of."""
    pieces = tuple(pieces)
    back, said = max(
        ((place, said) for place, piece in enumerate(pieces) if (said := _taken_back(piece))), default=(0, "")
    )
    ban, about, polite = "", "", False
    for place, piece in enumerate(pieces):
        if piece.opens and not piece.in_list:
            ban, about, polite = "", "", False
        polite = polite or _POLITE.search(piece.text) is not None
        doubt = _doubt(piece, about if piece.joined else "", polite=polite)
        if place < back:
            doubt = f"it is taken back with {said!r}"
        yield replace(piece, ban=ban, doubt=doubt)
        own = _NEVER.search(piece.text)
        if own is not None and not _REACHES_NOT.match(own[0].strip(" ,")):
            ban = own[0].strip(" ,")
        about = about or _spoken_of(piece.text)


def _taken_back(piece: _Piece) -> str:
    """The words by which a piece takes back what came before it: a bare ban is such, unless a list comes below it."""
    bare = piece.text.strip(" \t,.!?-()\u2026\u2013\u2014")
    found = _NEVER.fullmatch(bare) or _TAKES_BACK.fullmatch(bare)
    return found[0] if found else ""


def _spoken_of(text: str) -> str:
    """The word of a piece that makes it speak of deeds rather than ask for them."""
    for found in _EMBEDS.finditer(text):
        if not _OWN_WORD.search(text[: found.start()]):
            return found[0]
    bare = _stripped(text)
    states = None if _begins_with_verb(bare) else _STATES.search(bare)
    return states[0] if states else ""


def _doubt(piece: _Piece, about: str, *, polite: bool) -> str:
    if piece.asks and not polite:
        return "it is put as a question"
    if about:
        return f"it may belong to what is said with {about!r} before"
    text = _INTRODUCED.sub(" at ", piece.text)
    told = next((one for one in _EMBEDS.finditer(text) if not _OWN_WORD.search(text[: one.start()])), None)
    return f"it is spoken of with {told[0]!r}" if told else ""


def _begins_with_verb(text: str) -> bool:
    lead = words(_stripped(text)[:60])
    if not lead:
        return False
    if _NEVER.match(_stripped(text)):
        return True
    return lexicon.verb(lead[0]) is not None and not lead[0].endswith("ing")


def _commands(text: str) -> bool:
    """Does it begin with a word that can only be a verb, though none that is known: a small one before an article?"""
    found = _COMMANDS.match(text)
    word = words(text[:60])[:1]
    if found is None or text[:1].isupper() or not word:
        return False
    return (
        word[0] not in lexicon.STOP | _NO_VERBS
        and not _PHRASE.fullmatch(word[0])
        and not word[0].endswith(("ly", "ing", "s"))
    )


def _stripped(text: str) -> str:
    bare = text.strip(" \t,.:;!?-*•")
    while shorter := _LEAD.match(bare):
        bare = bare[shorter.end() :]
    return bare


def _prohibitions(piece: _Piece) -> Iterator[_Piece]:
    ban = _NEVER.search(piece.text)
    if ban is None:
        yield piece
        return
    said, ruled_out = piece.text[: ban.start()], piece.text[ban.end() :]
    if not ruled_out.strip(" ,.!"):
        yield replace(piece, ban=piece.ban or ban[0].strip(" ,"))
        return
    if said.strip(" ,"):
        yield replace(piece, text=said)
    yield replace(piece, text=ruled_out, ordered=False, ban=ban[0].strip(" ,"))


def _clause(piece: _Piece, spans: tuple[Span, ...], number: int) -> Clause:
    bare = _stripped(piece.text)
    whole = f"{piece.opening}, {bare}" if piece.opening else bare
    bare = _INTRODUCED.sub(" at ", bare)
    spoken = words(_MASK.sub(" ", bare))
    said = (*spoken, *words(_MASK.sub(" ", piece.opening)))
    family, object_text = _verb_and_object(bare, spoken, spans, said)
    to_be = None if family else _TO_BE.search(bare)
    if to_be is not None:
        family, object_text = _participle(to_be["done"].casefold()), f"{bare[: to_be.start()]} {bare[to_be.end() :]}"
    if family is not None and family not in lexicon.GENERIC:
        object_text = _without_addressees(_without_callings(object_text, spans), spans)
    head, rest = _head_and_rest(
        _LIKENED.sub(" ", _plainly_asked(object_text, family)), changes=family in lexicon.MUTATING
    )
    exception = _EXCEPTION.search(whole)
    conditional = _is_conditional(whole, family)
    doubt = piece.doubt
    if not doubt and family in lexicon.MUTATING:
        doubt = _statement(piece.text, bare, spoken)
    if not doubt and family in lexicon.MUTATING and (waits := _DEFERRED.search(whole)):
        doubt = f"it waits for something: {waits[0]!r}"
    return Clause(
        number=number,
        text=_unmask(whole, spans),
        verb=family,
        head=head,
        rest=rest,
        words=said,
        spans=tuple(_situated(whole, spans)),
        after_previous=piece.ordered and number > 0,
        forbidden=bool(piece.ban),
        conditional=conditional,
        circumstance=family is None and _CIRCUMSTANCE.match(bare) is not None and not _has_verb(spoken),
        doubt=doubt,
        exception=exception[0] if exception else "",
        sought=_sought(bare, family),
        asks=piece.asks,
        values=_values(whole, spoken),
        opening=tuple(lexicon.concepts(_MASK.sub(" ", piece.opening))),
        masked=_kinds(bare, spans),
        marked=_with_opening(bare, piece.opening),
        described="" if exception else _described(object_text, spans),
        written=f"{piece.ban} {_MASK.sub(lambda match: spans[int(match[1])].written, whole)}".strip(),
    )


def _with_opening(bare: str, opening: str) -> str:
    """A clause with what opens it in the place where it would stand else: before the first phrase of the kind."""
    first = _PHRASE.search(bare)
    at = first.start() if first else len(bare)
    return f"{bare[:at]} {opening} {bare[at:]}" if opening else bare


def _statement(text: str, bare: str, spoken: list[str]) -> str:
    """Why words that begin with a verb that changes the world tell of it rather than ask for it, or nothing."""
    if not spoken or lexicon.verb(spoken[0]) is None:
        return ""
    if spoken[0].endswith("ing") and words(text[:_AHEAD])[:1] == spoken[:1]:
        return f"it is spoken of with {spoken[0]!r}"
    finite = _FINITE_NEXT.search(bare)
    return f"it is spoken of with {finite['said']!r}" if finite else ""


def _participle(done: str) -> str:
    """The family of what is to be done to something; a word of no family stands for itself."""
    bases = (
        lexicon.PARTICIPLES.get(done, done),
        done.removesuffix("d"),
        done.removesuffix("ed"),
        done.removesuffix("ed")[:-1],
    )
    return next((lexicon.FAMILY_OF_VERB[base] for base in bases if base in lexicon.FAMILY_OF_VERB), done)


def _verb_and_object(
    bare: str, spoken: list[str], spans: tuple[Span, ...], said: Sequence[str]
) -> tuple[str | None, str]:
    """The family of a clause's verb, and what it is done to: a verb is the first word, or the first and a second one.

    :param said: with what opens the clause.
    """
    family = lexicon.verb(spoken[0]) if spoken else None
    rest = bare[_first_word_end(bare) :] if family else bare
    if family and spoken[0] in lexicon.AT:
        rest = f"{lexicon.AT[spoken[0]]} for {rest}"
    named = _named(bare, spans)
    if _is_said_in_a_language(family, said, named):
        return "translate", rest
    if (found := lexicon.phrase(spoken)) is not None:
        return found[0], _without(found[1], bare[_first_word_end(bare) :])
    if (asked := _asked_of_a_place(bare, spans) or _told_to_somebody(bare, spans)) is not None:
        return asked
    if family is None or family in lexicon.GENERIC:
        return _unsaid_verb(bare, spoken, named) or (family, rest)
    if (
        family in _DOING
        and (deed := _DEED.match(rest))
        and deed["deed"].casefold() in lexicon.DEEDS | {"index", "list"}
    ):
        return lexicon.concept(deed["deed"].casefold()), deed["kind"] + rest[deed.end("deed") :]
    return ("convert" if family == "turn" and "into" in spoken else family), rest


def _asked_of_a_place(bare: str, spans: tuple[Span, ...]) -> tuple[str, str] | None:
    """To say what is in a directory is to list its files."""
    found = _LIES_THERE.match(bare)
    return ("list", "files") if found and is_directory(spans[int(found["place"])]) else None


def _told_to_somebody(bare: str, spans: tuple[Span, ...]) -> tuple[str, str] | None:
    """To let somebody whose address is named know something is to send it."""
    found = _TELLS.match(bare) or _GETS.match(bare)
    if found is None or spans[int(found["to"])].kind != "email":
        return None
    return "send", _LINE.sub(" ", bare[found.end() :])


def _unsaid_verb(bare: str, spoken: list[str], named: frozenset[str]) -> tuple[str, str] | None:
    """What is to be done where no known verb begins the clause: what is wanted done, what a thing is made, an unknown verb."""
    if (done := _wanted_done(bare, spoken)) is not None:
        return _participle(done), _TO_HAVE.sub(" ", _without(done, bare), count=1)
    if (made := _made(bare, spoken, named)) is not None:
        return made, bare[_first_word_end(bare) :] if lexicon.verb(spoken[0]) else bare
    if spoken and lexicon.verb(spoken[0]) is None and spoken[0] not in lexicon.STOP and _COMMANDS.match(bare):
        return lexicon.concept(spoken[0]), bare[_first_word_end(bare) :]
    return None


def _without(word: str, text: str) -> str:
    return re.sub(rf"\b{word}\b", " ", text, count=1, flags=re.IGNORECASE)


def _wanted_done(bare: str, spoken: list[str]) -> str | None:
    """The participle of a wish to have something done: I want the page translated."""
    if not (_HAVING & set(spoken[:_HAVING_WORDS])) or _PERFECT.match(" ".join(spoken[: 2 * _HAVING_WORDS])):
        return None
    for before, word in itertools.pairwise(spoken[1:]):
        if word.endswith("ed") and before not in _ARTICLES and _participle(word) in lexicon.FAMILIES:
            return word
    said = _AT_THE_END.sub("", " ".join(words(_MASK.sub(" it ", bare)))).split()
    is_wanted = said[:1] and said[0] in _LETTING and len(said) > _HAVING_WORDS - 1
    return said[-1] if is_wanted and said[-1] in lexicon.PARTICIPLES and said[-2] not in _NO_OBJECT else None


def _named(bare: str, spans: tuple[Span, ...]) -> frozenset[str]:
    """The kinds of what is named exactly."""
    return frozenset(spans[int(match[1])].kind for match in _MASK.finditer(bare))


def _is_said_in_a_language(family: str | None, spoken: Sequence[str], named: frozenset[str]) -> bool:
    """Is a text to be put into a language, and nothing else spoken of?"""
    if "quoted" not in named and (named or family not in _SAYING or not _THAT.intersection(spoken)):
        return False
    if not (family is None or family in lexicon.GENERIC or family in _SAYING):
        return False
    if not any(
        (before in _TURNED and word in lexicon.HUMAN_LANGUAGES)
        or (before in lexicon.HUMAN_LANGUAGES and word in _VERSIONS)
        for before, word in itertools.pairwise(spoken)
    ):
        return False
    other = lexicon.STOP | lexicon.GENERIC | lexicon.HUMAN_LANGUAGES | _SAID | _VERSIONS
    return all(word in other or len(word) == 1 or kinds.of_word(word) == kinds.TEXT for word in spoken)


def _made(bare: str, spoken: list[str], named: frozenset[str]) -> str | None:
    """Making a thing something is changing it, where it is no deed that is made; a file of some width is resized."""
    if "number" in named and {"path", "url"} & named and lexicon.SIZES.intersection(spoken):
        return "resize"
    causes = _CAUSES.match(bare)
    return "update" if causes is not None and (causes["what"] or "").casefold() not in lexicon.DEEDS else None


def _is_conditional(bare: str, family: str | None) -> bool:
    """Does it hang on something? Where nothing is changed, `if you can` is kindness, and `what to do if` a subject."""
    if family not in lexicon.MUTATING:
        bare = _WHETHER.sub(" ", _COURTESY.sub(" ", bare))
    return _CONDITION.search(bare) is not None


def _sought(bare: str, family: str | None) -> tuple[str, ...]:
    found = _SOUGHT.search(_MASK.sub(" ", bare)) if family in lexicon.SEEKING else None
    if found is None:
        return ()
    ends = _PREPOSITION.search(found["what"])
    return tuple(lexicon.concepts(found["what"][: ends.start()] if ends else found["what"]))


def _has_verb(spoken: list[str]) -> bool:
    """Is anything in there a verb by its place, rather than a noun behind its article?"""
    pairs = itertools.pairwise(spoken)
    return any(
        before not in _ARTICLES
        and lexicon.FAMILY_OF_VERB.get(word)
        and (word not in lexicon.TWOFOLD or before in _ASKS)
        for before, word in pairs
    )


def _without_callings(text: str, spans: tuple[Span, ...]) -> str:
    """Without the words that links are called by: the link itself says what is meant."""
    return _CALLED.sub(lambda found: " " if spans[int(found["span"])].kind == "url" else found[0], text)


def _without_addressees(text: str, spans: tuple[Span, ...]) -> str:
    """Without the names of those whose address is named: the address itself says who is meant."""
    return _ADDRESSED.sub(lambda found: " " if spans[int(found["address"])].kind == "email" else found[0], text)


def _values(text: str, spoken: list[str]) -> frozenset[str]:
    """What is written as a name, within the clause, and words of time."""
    names = [word for name in _NAMED.findall(_MASK.sub(" , ", text)) for word in words(name)]
    either = _EITHER.match(text)
    names += words(" ".join(either.groups())) if either else []
    return frozenset(lexicon.concept(word) for word in (*names, *lexicon.TIMES.intersection(spoken)))


def _first_word_end(text: str) -> int:
    match = re.search(r"[^\W_]+", _MASK.sub(lambda found: " " * len(found[0]), text))
    return match.end() if match else 0


def _plainly_asked(text: str, family: str | None) -> str:
    """A question for what something does, with what is asked for first: which concepts do the papers speak of."""
    return _INVERTED.sub(r"\g<what> that ", text) if family is None else text


def _head_and_rest(text: str, *, changes: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The head is what the wish is about: up to the first preposition, `of` passed over.

    :param changes: whether the world is changed: then what only tells which one is meant is no matter that a tool must speak of.
    """
    if changes:
        text = _NUMBERING.sub(" ", text)
    at, spoken = 0, False
    found = list(_PREPOSITION.finditer(text))
    ends = [*(one.start() for one in found), len(text)]
    for one, end in zip(found, ends[1:], strict=True):
        spoken = spoken or bool(_spoken(text[at : one.start()]))
        at = one.start()
        belongs = _OF.fullmatch(one[0]) is not None and not (changes and _tells_which(text[one.end() : end], one[0]))
        if belongs or not spoken:
            continue
        return _spoken(text[: one.start()]), _spoken(text[one.end() :])
    return _spoken(text), ()


def _spoken(text: str) -> tuple[str, ...]:
    return tuple(lexicon.concepts(_MASK.sub(" ", text)))


def _qualifiers(text: str) -> Iterator[str]:
    """The words of prepositional phrases, and of what follows upon something named exactly; but for those that only introduce such.

    A phrase of what something belongs to is introduced by the next one, if that says where it lies.
    """
    first = _PHRASE.search(text)
    yield from _loose_words(text[: first.start() if first else len(text)].partition("\x02")[2])
    for (word, phrase), (following, after) in itertools.pairwise([*_phrases(text), ("", "")]):
        if word == "as" and _GIVES_REASON.match(phrase):
            return
        if word in _RELATES and _OF_OURS.match(phrase):
            continue
        if not (word in _BELONGS and following in _LIES and _MASK.search(after) and not _MASK.search(phrase)):
            yield from _loose_words(phrase)


def _phrases(text: str) -> Iterator[tuple[str, str]]:
    """Each preposition, or word that relates, with what follows it up to the next."""
    found = list(_PHRASE.finditer(text))
    ends = [*(one.start() for one in found[1:]), len(text)]
    yield from ((one["word"].casefold(), text[one.end() : end]) for one, end in zip(found, ends, strict=False))


def _loose_words(text: str) -> Iterator[str]:
    """The words that introduce nothing named exactly: such stand right before it, and no colon parts them."""
    pieces = _MASK_OR_REST.split(text)
    for place, piece in enumerate(pieces):
        if place == len(pieces) - 1 or piece.rstrip().endswith(":"):
            yield from words(_A_LINE.sub(" ", piece))


def _described(text: str, spans: tuple[Span, ...]) -> str:
    """What a verb's object is called, with the phrases behind it that tell by data which one is meant; nothing, where none does."""
    text = text.rstrip(" ,.:;!?").partition(",")[0]
    found = list(_PHRASE.finditer(text))
    ends = [*(one.start() for one in found), len(text)]
    head = text[: ends[0]]
    end, tells = ends[0], _NUMBERED.search(head) is not None or bool(_names(head))
    for one, after in zip(found, ends[1:], strict=True):
        if one["word"].casefold() not in _TELLS_WHICH or not _tells_which(text[one.end() : after], one["word"]):
            break
        end, tells = after, True
    said = _without_article(text[:end])
    exact = {spans[int(mask[1])].kind for mask in _MASK.finditer(said)}
    several = lexicon.SEVERAL.intersection(words(said))
    return _unmask(said, spans) if tells and not several and exact <= _DATA else ""


def _tells_which(phrase: str, relation: str) -> bool:
    """Is something told apart by a name, a number or a past time, with one more word at most? What lasts or is to come tells nothing apart."""
    said = _TOKEN.findall(_without_article(phrase))
    names = _names(f" {phrase}")
    times = [word for word in said if word.casefold() in lexicon.TIMES | _PAST]
    others = [word for word in said if not _MASK.fullmatch(word) and word not in names and word not in times]
    if times and not _PAST.intersection(times) and (relation.casefold() != "of" or len(times) < len(said)):
        return False
    if any(word in lexicon.STOP or word in _ADVERBS or word.endswith("ly") for word in others):
        return False
    return len(others) <= (not times) and len(others) < len(said) and (not others or bool(names))


def _without_article(text: str) -> str:
    found = _ARTICLE.match(text)
    return text[found.end() :] if found else text


def _names(text: str) -> set[str]:
    """What is written as a name, languages aside; the first word of all may be written so anyway."""
    placed = f"a {text.strip()}" if text[:1].isspace() else text
    return {name for name in _NAMED.findall(placed) if name.casefold() not in _NO_NAMES}


def _conjoined(marked: str, spans: tuple[Span, ...]) -> Iterator[tuple[Span, ...]]:
    """The spans of one kind between which there is no more than a comma, or an `and` and words said before them."""
    by_number = {span.number: span for span in spans}
    found = list(_MASK.finditer(marked))
    group: list[Span] = []
    before = 0
    for mask in found:
        span = by_number.get(int(mask[1]))
        joint = _JOINT.fullmatch(marked[before : mask.start()]) if group else None
        said = {*words(_MASK.sub(" ", marked[:before])), *_ARTICLES}
        if (
            span is None
            or joint is None
            or span.kind != group[-1].kind
            or not said.issuperset(words(joint["as"] or ""))
        ):
            yield from (tuple(group) for _ in group[1:2])
            group = []
        group += [] if span is None or span.before[-1:] == ("between",) else [span]
        before = mask.end()
    yield from (tuple(group) for _ in group[1:2])


def _situated(text: str, spans: tuple[Span, ...]) -> Iterator[Span]:
    for match in _MASK.finditer(text):
        span = spans[int(match[1])]
        before = words(_MASK.sub(" ", text[max(match.start() - _NEAR, 0) : match.start()]))[-3:]
        after = words(text[match.end() : match.end() + _NEAR].partition("\x02")[0])[:3]
        yield Span(
            number=span.number,
            kind=span.kind,
            value=span.value,
            written=span.written,
            before=tuple(before),
            after=tuple(after),
            doubtful=span.doubtful,
        )


def _unmask(text: str, spans: tuple[Span, ...]) -> str:
    return _MASK.sub(lambda match: spans[int(match[1])].value, text).strip()

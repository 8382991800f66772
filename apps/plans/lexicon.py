"""The English that planning needs: verbs in families, nouns that mean the same, words that say nothing of the task.

A word's concept is its family's name, else its stem; tools and intents are compared by concepts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from apps.core.lexical import stem, words
from apps.plans import verbs
from apps.plans.verbs import listed

_VERBS: Final = """
analyze: analyze analyse examine inspect assess evaluate study review audit investigate diagnose profile appraise scrutinize scrutinise
suggest: suggest recommend propose advise
optimize: optimize optimise improve tune
index: index catalogue
extract: extract mine harvest
parse: parse
scan: scan crawl walk
list: list enumerate itemize itemise ls
search: search find locate discover seek lookup google
fetch: fetch retrieve download get obtain grab
read: read open load
summarize: summarize summarise condense digest recap abridge shorten
report: report
combine: combine merge consolidate aggregate synthesize synthesise
create: create generate produce draft compose design invent
build: build compile assemble package
translate: translate localize localise
convert: convert transform transcode reformat
encode: encode
decode: decode
compress: compress zip
decompress: decompress unzip
resize: resize scale downsize downscale upscale shrink enlarge
crop: crop
rotate: rotate
classify: classify categorize categorise label tag triage
cluster: cluster group bucket
detect: detect identify recognize recognise spot determine ascertain discern pinpoint
predict: predict forecast
estimate: estimate approximate
compare: compare diff contrast
match: match align
count: count tally
compute: compute calculate
measure: measure benchmark quantify
check: check verify validate confirm ensure
test: test
lint: lint
monitor: monitor watch track observe
transcribe: transcribe
speech: speak recite pronounce narrate vocalize vocalise
clean: clean normalize normalise deduplicate sanitize sanitise cleanse
filter: filter select
sort: sort rank prioritize prioritise
score: score rate grade
visualize: visualize visualise plot chart graph draw render illustrate
answer: answer respond
explain: explain describe interpret clarify
query: query
annotate: annotate highlight
document: document
collect: collect gather
research: research explore survey conduct
trace: trace debug
geocode: geocode
route: route navigate
sample: sample
split: split segment chunk tokenize tokenise
embed: embed vectorize vectorise
train: train finetune
simulate: simulate model
solve: solve
proofread: proofread copyedit
rewrite: rewrite rephrase paraphrase reword
anonymize: anonymize anonymise redact mask
delete: delete remove erase wipe purge destroy drop discard rm
clear: clear truncate
uninstall: uninstall
write: write save store persist record
append: append insert add
update: update modify edit change patch alter adjust set
rename: rename
move: move relocate
copy: copy duplicate clone replicate
migrate: migrate
upload: upload
sync: sync synchronize synchronise
backup: backup archive
restore: restore recover
rollback: rollback revert undo
send: send email mail message notify forward text dispatch
post: post publish tweet share broadcast announce
call: call phone dial ring
invite: invite
submit: submit file
sign: sign
deploy: deploy release ship rollout launch
install: install provision
configure: configure
restart: restart reboot reset
stop: stop shutdown halt kill terminate abort
start: start boot
pay: pay charge invoice donate reimburse
buy: buy purchase order acquire procure
refund: refund
transfer: transfer wire
book: book reserve
schedule: schedule arrange plan remind
cancel: cancel
approve: approve authorize authorise grant
reject: reject revoke deny
lock: lock
unlock: unlock
encrypt: encrypt
decrypt: decrypt
execute: execute run
fix: fix repair resolve
refactor: refactor
commit: commit push
hire: hire recruit
fire: fire dismiss
print: print
cook: cook bake
drive: drive
fly: fly
play: play stream
assign: assign delegate
escalate: escalate
negotiate: negotiate
sell: sell
trade: trade invest
vote: vote
block: block ban
follow: follow subscribe
unsubscribe: unsubscribe
turn: turn switch toggle
"""

_NOMINAL: Final = """
analyze: analysis analyses analytics analyzer assessment evaluation inspection examination investigation
suggest: suggestion suggestions recommendation recommendations proposal proposals advice idea ideas tip tips hint hints
optimize: optimization optimizations optimisation optimisations improvement improvements
extract: extraction
index: indexing indices
scan: scanner scanning
search: finder
summarize: summary summaries synopsis overview
report: reports reporting
combine: synthesis aggregation consolidation
create: creation generation generator
translate: translation translations translator
convert: conversion converter
classify: classification classifier categorization
detect: detection detector recognition identification
predict: prediction predictions
compare: comparison
compute: calculation calculator computation
measure: measurement metrics
check: verification validation
transcribe: transcription transcriptions transcript transcripts
visualize: visualization diagram
explain: explanation description
delete: deletion removal
send: sending sender
deploy: deployment
pay: payment
book: booking reservation
"""

_NOUNS: Final = """
repository: repository repositories repo repos codebase codebases code
directory: directory directories folder folders dir
file: file files
document: document documents doc docs
article: article articles paper papers publication publications literature
image: image images picture pictures photo photos photograph
email: email emails mail mails inbox
webpage: webpage webpages website websites homepage
web: web internet online www
video: video videos movie clip
audio: audio podcast
issue: issue issues bug bugs defect defects problem problems flaw flaws
vulnerability: vulnerability vulnerabilities cve cves
database: database databases db
spreadsheet: spreadsheet spreadsheets excel xlsx
sentiment: sentiment sentiments mood moods emotion emotions feeling feelings attitude tone positive negative polarity
keyword: keyword keywords keyphrase keyphrases
citation: citation citations bibliography
customer: customer customers client clients
weather: weather temperature
currency: currency currencies
text: text texts content contents wording phrase phrases say says
speech: speech spoken said uttered voice voices
language: language languages
"""

STOP: Final = listed("""
    a an the this that these those it its them they their his her my our your me us you i we he she who whom which
    what whether there here is are was were be been being am do does did done doing have has had having will would shall
    should can could may might must to of in on at by for from with within into onto over under about against
    between through during as than then so and or but nor if else also too just please kindly thanks thank now all
    any some each every both few more most other such own same very much many several various whole entire
    complete full comprehensive detailed thorough brief short quick key main important relevant actionable
    possible potential good best nice following given attached above below one two three result results top last
    output outputs thing things stuff something anything everything using use used via based it's let let's need
    inside outside around across along among behind beneath beyond beside near off per throughout toward towards
    saying stating titled entitled called named containing latest newest recent current currently underneath upon know lie lies exist exists reside resides contain contains contained seem seems love want like help make give show tell provide perform carry out up down how why when where while
    immediately promptly quickly directly asap
    """)

GENERIC: Final = listed("""
    make do give show tell perform provide handle use help need present return deliver output get obtain grab have know
    see let
    """)
"""Verbs that ask for something without saying what."""

_TWOFOLD: Final = listed("""
    text mail message email file post call document record model order book stream change plan print drive fire
    ship patch charge transfer track lock sign play block push scale profile study review set release launch
    process score rate grade graph chart draw segment sample route match group bucket view design share open read
    press stop start object turn switch run
    """)
"""Verbs that are nouns as often: in the object of a wish, or in a tool's text, they stand for themselves."""

TWOFOLD: Final = _TWOFOLD | verbs.TWOFOLD

SAYING_NOTHING: Final = STOP | GENERIC | frozenset({"thanks", "cheers", "regards", "once"})
"""Words that restrict nothing, wherever they stand."""

TIMES: Final = listed("""
    january february march april june july august september october november december monday tuesday wednesday thursday
    friday saturday sunday today tomorrow tonight yesterday am pm morning afternoon evening noon midnight week weekend month
    year day hour minute next coming upcoming o clock st nd rd th first second third fourth fifth
    """)
"""Words of time: they are values, and tell nothing of what is to be done."""

COUNTS: Final = listed("two three four five six seven eight nine ten eleven twelve dozen twice thrice half")
"""How often or how many: what does a thing once does no more than that."""

EXTREMES: Final = listed("largest biggest smallest newest oldest longest shortest fastest slowest sorted first last")
"""Which of several, or in what order: what does a thing to all of them heeds no such word."""

COMPARING: Final = listed("younger newer older larger bigger smaller longer shorter later earlier last latest past")
"""Which of several, beside others: what takes the older ones does not do it to the newer ones."""

TOGETHER: Final = listed("both together one combined jointly")
"""What may say that several things are meant as one."""

SEVERAL: Final = COUNTS | listed("""
    all any each every both everything anything whatever other others another several many some few most no none
    """)
"""What says that more than one thing is meant, or not just which."""

SYNTHESIS: Final = frozenset({"summarize", "report", "combine"})
"""What a principal can do with results that it holds: an aggregate step serves these."""

MUTATING: Final = listed("""
    delete clear uninstall write append update rename move copy migrate upload sync backup restore rollback send post
    call invite submit sign deploy install configure restart stop start pay buy refund transfer book schedule cancel approve reject
    lock unlock encrypt decrypt execute fix refactor commit hire fire print cook drive fly play assign negotiate
    sell trade vote block follow unsubscribe turn train
    """)
"""Families that change the world: done only when asked for by name."""

PROGRAMMING_LANGUAGES: Final = listed("""
    python javascript typescript java rust go golang ruby php kotlin swift scala haskell perl csharp cpp sql bash
    """)

HUMAN_LANGUAGES: Final = listed("""
    afrikaans albanian amharic arabic armenian azerbaijani basque belarusian bengali bosnian breton bulgarian burmese
    catalan chinese cantonese croatian czech danish dutch english esperanto estonian faroese farsi finnish flemish
    french frisian gaelic galician georgian german greek gujarati hausa hawaiian hebrew hindi hungarian icelandic
    igbo indonesian irish italian japanese javanese kannada kazakh khmer korean kurdish kyrgyz lao latin latvian
    lithuanian luxembourgish macedonian malagasy malay malayalam maltese mandarin maori marathi mongolian nepali
    norwegian pashto persian polish portuguese punjabi quechua romanian russian samoan sanskrit serbian shona sindhi
    sinhala slovak slovene slovenian somali spanish swahili swedish tagalog tajik tamil tatar telugu thai tibetan
    tigrinya tongan turkish turkmen ukrainian urdu uzbek vietnamese welsh wolof xhosa yiddish yoruba zulu
    """)

EXTENSIONS: Final = listed("""
    pdf txt md csv json xml yaml html docx doc xlsx pptx png jpg jpeg gif svg mp3 mp4 wav py js ts java rs go rb
    php log
    """)

ENDINGS_OF_LANGUAGES: Final = {
    "python": "py", "javascript": "js", "typescript": "ts", "golang": "go", "rust": "rs", "ruby": "rb", "markdown": "md",
}  # fmt: skip
"""What files in a language end with, where its name says so."""

TEXTUAL: Final = frozenset(
    {"text", "content", "document", "body", "passage", "message", "transcript", "review", "sentence"}
)
"""Params that hold the matter itself: only a quoted or given text fills them."""

ASKING: Final = frozenset({"query", "prompt", "intent", "question", "topic", "instruction", "instructions", "goal"})
"""Params that hold the wish: the clause in its own words fills them."""

WISHES: Final = frozenset({"intent", "instruction", "instructions", "goal"})
"""Of these, params that hand the wish on to somebody who understands it: whatever it names exactly is a part of it."""

NAMING: Final = frozenset({"name", "title", "label"})
"""Params that hold what one thing is called."""

PATHLIKE: Final = listed("""
    path paths file filename filepath dir directory folder repo repository root location source
    """)
FILELIKE: Final = frozenset({"files", "paths", "documents", "pdfs"})
LINKLIKE: Final = frozenset(["url", "uri", "link", "endpoint", "website", "webpage", "page", "site", "href"])
EMAILLIKE: Final = frozenset({"email", "recipient", "recipients", "to", "cc", "bcc", "sender"})
DATELIKE: Final = frozenset({"date", "day", "since", "until", "start", "end", "deadline", "when"})
_FORMATS: Final = {"uri": "url", "uri-reference": "url", "email": "email", "date": "date", "date-time": "date"}
COUNTLIKE: Final = frozenset(["limit", "count", "number", "max", "top", "n", "size", "results", "items", "k"])
POINTERLIKE: Final = frozenset({"pointer", "ref", "reference", "handle", "artifact"})


_PHRASES: Final = """
search: look_up look_for hunt_for hunt_down track_down dig_up
analyze: look_at look_into look_over go_over have_look take_look
scan: look_through go_through leaf_through flick_through
detect: find_out work_out figure_out
extract: pull_out pick_out take_out draw_out
transcribe: write_down write_out type_out type_up
speech: read_aloud read_out say_aloud
summarize: sum_up boil_down
check: make_sure
create: set_up put_together draw_up make_up
resize: scale_down scale_up size_down blow_up
delete: get_rid throw_away throw_out wipe_out clear_out clean_out do_away cross_out
stop: shut_down close_down power_down turn_off switch_off take_down
start: boot_up power_up turn_on switch_on
restore: bring_back roll_back
backup: back_up
cancel: call_off
call: ring_up call_up
send: send_out send_off pass_on
"""
"""Verbs of two words. What is between the two may be the object: look it up, read the page aloud."""

PARTICIPLES: Final = {
    "run": "run", "rerun": "run", "read": "read", "sent": "send", "resent": "send", "written": "write", "rewritten": "rewrite",
    "found": "find", "built": "build", "rebuilt": "build", "drawn": "draw", "shrunk": "shrink", "paid": "pay", "bought": "buy",
    "sold": "sell", "sought": "seek", "shut": "shutdown", "split": "split",
}  # fmt: skip
"""Participles that don't end in -ed, with a verb of the same family."""

SEEKING: Final = frozenset({"search", "scan"})
"""Families after which `for` names what is sought."""

KIN: Final = {
    "search": frozenset({"extract", "list", "scan", "detect", "query"}),
    "collect": frozenset({"extract", "list", "search"}),
    "detect": frozenset({"analyze", "extract", "measure", "search"}),
    "measure": frozenset({"analyze"}),
    "check": frozenset({"analyze"}),
    "extract": frozenset({"read", "detect"}),
    "read": frozenset({"fetch"}),
}
"""What people also mean by a verb of knowing: who finds the names in a letter extracts them."""

AT: Final = {"google": "web"}
"""Verbs that say where it is done as well."""

PLACES: Final = frozenset({"repository", "directory", "project", "workspace", "root", "tree"})
"""What holds other things: who takes it takes what is in it."""

SIZES: Final = listed("""
    wide wider narrow narrower high higher tall taller big bigger large larger small smaller
    """)
"""What a thing is made that is resized."""

_MEASURE_WORDS: Final = """
width: wide wider broad
height: high tall
length: long
depth: deep
weight: heavy
age: old
distance: far
speed: fast
"""
"""The measure that an adjective behind a number speaks of."""

UNITS: Final = {
    "px": "pixels",
    "pix": "pixels",
    "s": "seconds",
    "sec": "seconds",
    "secs": "seconds",
    "ms": "milliseconds",
    "min": "minutes",
    "mins": "minutes",
    "h": "hours",
    "hrs": "hours",
    "kg": "kilograms",
    "km": "kilometers",
    "cm": "centimeters",
    "mm": "millimeters",
    "kb": "kilobytes",
    "mb": "megabytes",
    "gb": "gigabytes",
    "deg": "degrees",
}
"""Units in short."""

_NOUN_ENDINGS: Final = ("al", "ment", "ation", "ion", "ance", "er", "or")
_SHORTEST_VERB: Final = 4
_WORDS_OF_A_PHRASE: Final = 2
_BETWEEN: Final = frozenset({"it", "them", "this", "that", "these", "those", "a", "an", "the", "me", "us"})


def _families(table: str) -> dict[str, tuple[str, ...]]:
    lines = (line.partition(":") for line in table.strip().splitlines())
    return {name.strip(): tuple(members.split()) for name, _, members in lines}


def _concepts() -> dict[str, str]:
    found: dict[str, str] = {}
    for table in (_NOUNS, _NOMINAL, _VERBS):
        for name, members in _families(table).items():
            for member in members:
                if member not in _TWOFOLD or table is not _VERBS:
                    found.setdefault(stem(member), name)
    return found | {stem(name): "language" for name in HUMAN_LANGUAGES}


DEEDS: Final = frozenset(member for members in _families(_NOMINAL).values() for member in members)
"""Nouns for what is done: index, translation, overview."""

_MEASURES: Final = {member: name for name, members in _families(_MEASURE_WORDS).items() for member in members}
MEASURES: Final = frozenset(_MEASURES.values())
"""What numbers tell of things."""
_PHRASES_OF: Final = {
    tuple(member.split("_")): name for name, members in _families(_PHRASES).items() for member in members
}
FAMILY_OF_VERB: Final = {
    **{member: stem(member) for member in sorted(verbs.PLAIN | verbs.TWOFOLD)},
    **{member: name for name, members in _families(_VERBS).items() for member in members},
}
FAMILIES: Final = frozenset(FAMILY_OF_VERB.values())
UNDERSTOOD: Final = frozenset(_families(_VERBS))
"""Families of verbs that mean the same; any other verb stands for itself, and may well mean what one of these does."""
_CONCEPTS: Final = _concepts()


@lru_cache(maxsize=65536)
def concept(word: str) -> str:
    """Return what a lower-case word stands for."""
    root = stem(word)
    return _CONCEPTS.get(root) or _of_verb(word) or root


def _of_verb(word: str) -> str | None:
    """The concept of the verb that a noun is made from: rental, printer, adjustment."""
    for ending in _NOUN_ENDINGS:
        base = word.removesuffix("s").removesuffix(ending)
        if len(base) >= _SHORTEST_VERB and len(base) < len(word.removesuffix("s")):
            found = next((form for form in (base, f"{base}e") if form in FAMILY_OF_VERB), None)
            if found is not None:
                return FAMILY_OF_VERB[found]
    return None


def concepts(text: str) -> list[str]:
    """Return the concepts of a text, words that say nothing left out."""
    return [concept(word) for word in words(text) if word not in STOP and (len(word) > 1 or word.isdecimal())]


def concepts_of(texts: Iterable[str]) -> list[str]:
    """Return the concepts of several texts."""
    return [found for text in texts for found in concepts(text)]


def verb(word: str) -> str | None:
    """Return the family of a verb in its base form or as a gerund, or None if it is no known verb."""
    if word in GENERIC:
        return word
    return FAMILY_OF_VERB.get(word) or _gerund(word)


def phrase(said: Sequence[str]) -> tuple[str, str] | None:
    """Return the family and the second word of the verb of two words that something said begins with, or None."""
    if len(said) < _WORDS_OF_A_PHRASE:
        return None
    second = next((word for word in said[1:] if word not in _BETWEEN), "")
    out = ["out"] if any(pair == ("out", "of") for pair in itertools.pairwise(said)) else []
    for form in _forms(said[0]):
        for particle in (second, said[-1], *out):
            if (form, particle) in _PHRASES_OF:
                return _PHRASES_OF[form, particle], particle
    return None


def exact_kind(name: Sequence[str], declared: str) -> str | None:
    """Return what kind of exact name a param takes (url, path, email, date), by its format or its name's last word, or None."""
    if declared in _FORMATS:
        return _FORMATS[declared]
    last = frozenset(name[-1:])
    likes = (("url", LINKLIKE), ("path", PATHLIKE), ("email", EMAILLIKE), ("date", DATELIKE))
    return next((kind for kind, names in likes if last & names), None)


def measure(word: str) -> str:
    """Return the measure that a word speaks of, or the word."""
    return _MEASURES.get(word, word)


def _gerund(word: str) -> str | None:
    return next((FAMILY_OF_VERB[form] for form in _forms(word)[1:] if form in FAMILY_OF_VERB), None)


def _forms(word: str) -> tuple[str, ...]:
    """A word, and what it is a gerund of if it is one."""
    if not word.endswith("ing"):
        return (word,)
    base = word.removesuffix("ing")
    doubled = base[:-1] if base[-2:-1] == base[-1:] else base
    return word, base, f"{base}e", doubled


RELATING: Final = "at|in|on|from|for|of|to|with|into|onto|under|inside|within|by|against|using|via|as"
"""Prepositions, as alternatives of a pattern: a phrase that one of these begins says how, where or for whom."""
RELATING_TOO: Final = "through|over|across|among|between|during|per|toward|towards"
"""Others, which may begin one only at the start of a wish."""

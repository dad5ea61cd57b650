"""Rules about the router, the eval and the way in which a run is judged."""

from collections.abc import Iterator
from math import sqrt

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, arg

QUESTIONS = 1319
SIZES = {"gsm8k": {"questions": QUESTIONS, "shots": 7473}, "mini": {"questions": 40, "shots": 8}}
"""Of the test and the train split, which gives the worked examples."""
SHORTEST_ANSWER = 256


def cache_aware(case: Case) -> Iterator[Finding]:
    """DSG901: a policy that need not use every pair."""
    router = case.deployment.router
    pairs = len(case.deployment.role("prefill")) * len(case.deployment.role("decode"))
    if router.policy == "cache_aware" and pairs > 1:
        message = f"cache_aware need not use all {pairs} pairs"
        yield finding("DSG901", message, where="router.policy")


def router_gives_up_first(case: Case) -> Iterator[Finding]:
    """DSG902: the router's request time-out is shorter than SGLang's own."""
    timeout = case.deployment.router.args.get("request-timeout-secs")
    if isinstance(timeout, int) and not isinstance(timeout, bool) and timeout < 300:
        message = f"the router gives a request up after {timeout} s, before SGLang's 300 s"
        yield finding("DSG902", message, where="router.args.request-timeout-secs")


def breaker_outlasts_retries(case: Case) -> Iterator[Finding]:
    """DSG903: retries that end while the circuit breaker is still open."""
    args = case.deployment.router.args
    breaker, retries = args.get("cb-timeout-duration-secs"), args.get("retry-max-retries")
    backoff = args.get("retry-max-backoff-ms", 30_000)
    if isinstance(breaker, int) and isinstance(retries, int) and isinstance(backoff, int):
        longest = 0 if args.get("disable-retries") else retries * backoff / 1000
        if longest < breaker:
            message = f"{retries} retries end within {longest:.0f} s, and an open breaker lasts {breaker} s"
            yield finding("DSG903", message, where="router.args.cb-timeout-duration-secs")


def ranks_chosen_twice(case: Case) -> Iterator[Finding]:
    """DSG904: the router chooses DP ranks, and prefill takes the room's number for the choice."""
    name = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
    for pool in case.role("prefill") if case.deployment.router.args.get("dp-aware") else ():
        follows = str(arg(pool, "load-balance-method") or "auto") in ("auto", "follow_bootstrap_room")
        forced = pool.worker.env.get(name, "0").lower() in ("1", "true", "yes", "on")
        if pool.worker.dp > 1 and follows and not forced and not case.before("0.5.11"):
            message = f"the router chooses among the {pool.worker.dp} DP ranks of {pool.where}, which follow the room"
            yield finding("DSG904", message, where="router.args.dp-aware")


def key_of_workers(case: Case) -> Iterator[Finding]:
    """DSG905, DSG906: workers that want an API key which the router is not given, or another than it is given."""
    routers = case.deployment.router.args.get("api-key")
    for pool in case.deployment.pools:
        key, where = arg(pool, "api-key"), case.at(pool, "args", "api-key")
        if key and not routers:
            yield finding("DSG905", f"{pool.where} wants an API key, and the router is given none", where=where)
        elif key and key != routers:
            yield finding("DSG906", f"{pool.where} wants another API key than the router", where=where)


def more_questions_than_there_are(case: Case) -> Iterator[Finding]:
    """DSG914: more questions, or worked examples, than the dataset has."""
    gsm8k = case.deployment.eval.gsm8k
    if gsm8k is None or gsm8k.data:
        return
    there = SIZES[gsm8k.dataset]
    asked = {"questions": gsm8k.questions or 0, "shots": gsm8k.shots}
    for field, count in asked.items():
        if count > there[field]:
            message = f"{count:,} {field} of {gsm8k.dataset}, which has {there[field]:,}"
            yield finding("DSG914", message, where=f"eval.gsm8k.{field}", fix=f"ask for {there[field]:,} or fewer")


def margin_below_noise(case: Case) -> Iterator[Finding]:
    """DSG911: a margin that chance alone exceeds."""
    gsm8k = case.deployment.eval.gsm8k
    if gsm8k is None or gsm8k.baseline is None:
        return
    questions = gsm8k.questions or QUESTIONS
    noise = sqrt(gsm8k.baseline * (1 - gsm8k.baseline) / questions)
    if gsm8k.margin < 2 * noise:
        message = f"margin {gsm8k.margin} with {questions} questions, whose standard error is {noise:.4f}"
        yield finding("DSG911", message, where="eval.gsm8k.margin")


def answers_cut_off(case: Case) -> Iterator[Finding]:
    """DSG912: too few tokens for a worked answer."""
    gsm8k = case.deployment.eval.gsm8k
    if gsm8k and gsm8k.max_tokens < SHORTEST_ANSWER and case.deployment.model.synthetic is None:
        message = f"max_tokens {gsm8k.max_tokens} cuts worked answers off"
        yield finding("DSG912", message, where="eval.gsm8k.max_tokens")


def all_at_once(case: Case) -> Iterator[Finding]:
    """DSG913: all questions in flight at once."""
    gsm8k = case.deployment.eval.gsm8k
    if gsm8k and gsm8k.concurrency >= (gsm8k.questions or QUESTIONS) > 64:
        message = f"all {gsm8k.questions or QUESTIONS} questions are sent at once"
        yield finding("DSG913", message, where="eval.gsm8k.concurrency")


RULES = (
    cache_aware,
    router_gives_up_first,
    breaker_outlasts_retries,
    ranks_chosen_twice,
    key_of_workers,
    more_questions_than_there_are,
    margin_below_noise,
    answers_cut_off,
    all_at_once,
)

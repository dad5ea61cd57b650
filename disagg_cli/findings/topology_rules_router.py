"""Rules about the router, the eval and the way in which a run is judged."""

from collections.abc import Iterator
from math import sqrt

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case

QUESTIONS = 1319
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
    margin_below_noise,
    answers_cut_off,
    all_at_once,
)

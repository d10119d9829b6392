"""Lines that say that something failed, without signatures and tracebacks."""

from __future__ import annotations

import re

from vllm_spark.doctor.tracebacks import MARK

# argparse. Compilers print "error:" as well, so that the line needs the program's name or a usage before it.
USAGE_ERROR = re.compile(r"(?:[\w./-]+(?: [\w-]+)?: )?error: \S")
PROGRAM_ERROR = re.compile(r"\S*(?:vllm|api_server(?:\.py)?|ray|python3?)(?: [\w-]+)?: error: \S")
# The daemon, then the client's own check of its flags.
DOCKER_ERROR = re.compile(
    r"docker: \S|Error response from daemon: |invalid argument \".*\" for \"-\S.*\" flag: "
    r"|unknown (?:shorthand )?flag: "
)
NCCL_WARNING = " NCCL WARN "  # NCCL's name for what makes a call fail
WORKER_FAILED = "a worker of the engine failed, and no signature knows what it said"
NOTHING = "NoneType: None"  # the traceback of a logger outside of an exception
LOGGED = "the engine logged an error that no signature knows"
# The engine, and the supervisor of a pair: on the head, and on a worker, whose engine does not say that it serves.
SERVING = re.compile(r"Application startup complete\.|vllm-spark: (?:the API answers|\S+ serves)$")
ANSWERED = re.compile(r'\S+ - "[A-Z]+ /v1/\S+ HTTP/[\d.]+" 2\d\d')
# The API server refuses one request and goes on. The next lines are that request's traceback.
REQUEST = re.compile(r"Error in preprocessing prompt inputs|Error with model object=")
# A server that is stopped from outside (v1/engine/core.py and entrypoints/launchers/launcher.py, 0.32.0). What its
# processes print afterwards is not a failure: the API server asks for the command of a process that it has just
# killed, and psutil raises ZombieProcess or NoSuchProcess.
STOPPED = re.compile(r"\[shutdown\] (?:.*\breceived signal=SIG(?:TERM|INT)|API server: shutdown triggered)")
STOP_COMPLETE = "Application shutdown complete."  # uvicorn
# The first lines of a start: of the launch, of systemd, of the engine (0.11 to 0.32), and of a start that is refused.
STARTED = re.compile(
    r"vllm-spark: launch |Start(?:ing|ed) vllm(?:@\S+)?\.service|vLLM API server version |non-default args: "
    r"|usage: vllm |docker: |Error response from daemon: "
)
# Every process of a start has these lines, so that they begin one only after the end of an earlier one.
STARTED_OR_WITHIN = re.compile(r"Automatically detected platform |Resolved architecture: ")
# A frame of a C++ stack trace names the exception's type in its function.
NATIVE_FRAME = re.compile(r"frame #\d+: ")
FATAL = frozenset({"ERROR", "CRITICAL"})
# Lines of native code and of compilers, which have no level.
NATIVE = re.compile(r"(?:Failed: )?C(?:UDA|uda) [Ee]rror\b|\S+: fatal error: |nvcc fatal|ptxas fatal")
# Any line without a level that a family may know.
HINT = re.compile(r"(?i)\bfail|error")
# Lines that only say that a process ended. Status 130 and 143 are an orderly stop.
ENDED = re.compile(
    r"Engine core initialization failed|Engine process failed to start|EngineDeadError|Failed core proc"
    r"|EngineCore (?:failed to start|encountered a fatal)|WorkerProc (?:initialization failed|failed to start)"
    r"|Got fatal signal from worker"
    r"|Main process exited, code=(?:exited, status=(?!130|143)[1-9]|killed|dumped)|Failed with result '(?!success)"
    r"|(?:[Ee]xited with code|[Ee]xit(?:ed with)? (?:status|code):?|exitcode:?|returned non-zero exit status)"
    r" (?!130|143)-?[1-9]|Exited \((?!130|143)[1-9]|\(core dumped\)|Segmentation fault|Fatal Python error"
    r"|terminate called (?:after|without)|died unexpectedly|Bus error"
)
# What a process that ends still logs without an error.
ENDING = re.compile(
    r"(?i)shut|exit|terminat|clean|destroy|abort|stopp|dumping|leaked|kill|died|\bfail|traceback|finished server"
)
ENDED_WITHOUT = "a process of the engine ended without a reason in the log"
ENDED_CAUSE = "the log ends in a failure, and its cause is not in these lines"
# What a program without levels prints before it ends. Only the last lines of a start that never served count.
LAST_WORDS = re.compile(
    r"(?i)\b(?:error|invalid|not (?:a )?valid|failed|refused|denied|cannot|unable to|no such|not found|must be"
    r"|kill(?:ed|ing)?|terminated|abort(?:ed|ing)?|timed out)\b"
)
KILLED = re.compile(r"(?i)\b(?:kill(?:ed|ing)?|terminated)\b")
KILLED_CAUSE = "something outside of the engine ended it before the server started, as this line says"
LAST_WORDS_CAUSE = "the log ends before the server started, and this is its last complaint"
LAST_WORDS_LINES = 20
# Without a signature, only a block with one of these can hold an error. " E " and " F " are raylet's levels.
MARKS = (
    *(
        MARK,
        "ERROR",
        "CRITICAL",
        "rror",
        "docker: ",
        "Error response",
        NCCL_WARNING,
        "Application startup",
        "vllm-spark: the API",
        " serves",
        " E ",
        " F ",
        '  File "',
    ),
    *(
        "Exception",
        "Failure",
        "Timeout",
        "fatal",
        "Fatal",
        "[E",
        "xited",
        "xit",
        "[shutdown]",
        "dumped",
        "ailed",
        "died",
        "terminate",
        "OutOf",
    ),
    *(
        "vllm-spark: launch",
        "ing vllm",
        "ted vllm",
        "server version",
        "non-default args",
        "detected platform",
        "Resolved arch",
    ),
    *(" Bad Request", " Not Found", " Unprocessable", " Too Many", " Unauthorized"),
    *("KILL", "kill", "Kill", "imed out", "aborted", "Aborted"),
    *("nvalid", "not valid", "unknown ", "efused", "enied", "annot ", "nable to", "o such ", "ust be"),
    *("usage: ", "Segmentation", "Value error, ", "Assertion failed, ", '"MESSAGE":[', '"MESSAGE": ['),
)

<?php

// A few functions to run tests with: each test is a function whose name begins with test.

declare(strict_types=1);

require_once __DIR__ . '/play.php';

/** Fails a test. */
function check(bool $holds, string $what): void
{
    if (!$holds) {
        throw new Failed($what);
    }
}

function same(mixed $want, mixed $got, string $what = 'got'): void
{
    check($want === $got, "$what: " . json_encode($got) . ', want ' . json_encode($want));
}

/** The code that a call fails with. */
function code(callable $f): string
{
    try {
        return 'no error, but ' . json_encode($f());
    } catch (Hapax\HapaxException $e) {
        return $e->errorCode;
    }
}

/** Runs a function in a child, and returns what it returns. */
function inChild(callable $f): callable
{
    [$read, $write] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        try {
            fwrite($write, serialize($f()));
        } catch (Throwable $e) {
            fwrite(STDERR, "$e\n");
        }
        posix_kill(getmypid(), SIGKILL); // without what its parent has to end
    }
    fclose($write);
    return function () use ($read, $pid): mixed {
        $got = stream_get_contents($read);
        pcntl_waitpid($pid, $status);
        return $got === '' ? null : unserialize($got);
    };
}

/** Runs the tests of a file, or those whose names have a text that the command line gives. */
function runTests(string $only): never
{
    $failed = 0;
    foreach (get_defined_functions()['user'] as $name) {
        $reflection = new ReflectionFunction($name);
        if (!str_starts_with($name, 'test') || !str_contains($name, strtolower($only))) {
            continue;
        }
        try {
            $reflection->invoke();
            echo "ok {$reflection->getName()}\n";
        } catch (Throwable $e) {
            $failed++;
            echo "FAILED {$reflection->getName()}: ", $e instanceof Failed ? "{$e->getMessage()} (line {$e->getTrace()[0]['line']})" : $e, "\n";
        }
    }
    echo $failed === 0 ? "passed\n" : "$failed failed\n";
    exit($failed > 0 ? 1 : 0);
}

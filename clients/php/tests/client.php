<?php

// Run with HAPAX=path/to/hapax php tests/client.php [PART-OF-A-NAME]

declare(strict_types=1);

require __DIR__ . '/run.php';
require __DIR__ . '/fpm.php';

error_reporting(E_ALL);
set_error_handler(function (int $level, string $what, string $file, int $line): bool {
    return error_reporting() & $level ? throw new ErrorException($what, 0, $level, $file, $line) : false;
});

const TRANSCRIPTS = __DIR__ . '/../../transcripts';

/** Plays transcripts in processes of their own, and returns what failed. */
function playAll(array $files, string $src = __DIR__ . '/../src'): array
{
    $failed = [];
    foreach (array_chunk($files, 8) as $some) { // most of them wait
        $running = [];
        foreach ($some as $file) {
            $command = [PHP_BINARY, '-d', 'display_errors=stderr', __DIR__ . '/play.php', getenv('HAPAX') ?: 'hapax', $file];
            $running[$file] = proc_open($command, [1 => ['pipe', 'w'], 2 => ['file', '/dev/null', 'w']], $pipes, null, ['HAPAX_PHP_SRC' => $src] + getenv());
            $out[$file] = $pipes[1];
        }
        foreach ($running as $file => $process) {
            $said = stream_get_contents($out[$file]);
            if (proc_close($process) !== 0 || !str_starts_with($said, 'ok ')) {
                $failed[basename($file)] = $said;
            }
        }
    }
    return $failed;
}

/**
 * Calls a function with a directory that holds an altered client.
 *
 * @param list<array{string, string, string}> $changes a file, a text in it, and what is there instead
 */
function withAltered(array $changes, callable $f): mixed
{
    $dir = sys_get_temp_dir() . '/hapax-' . bin2hex(random_bytes(6));
    mkdir("$dir/Internal", 0700, true);
    foreach (['', 'Internal/'] as $in) {
        foreach (glob(__DIR__ . "/../src/$in*.php") as $source) {
            copy($source, "$dir/$in" . basename($source));
        }
    }
    foreach ($changes as [$file, $from, $to]) {
        $text = file_get_contents("$dir/$file");
        same(1, substr_count($text, $from), "$from in $file");
        file_put_contents("$dir/$file", str_replace($from, $to, $text));
    }
    $result = $f($dir);
    array_map(unlink(...), [...glob("$dir/*.php"), ...glob("$dir/Internal/*.php")]);
    array_map(rmdir(...), ["$dir/Internal", $dir]);
    return $result;
}

/** Plays transcripts with an altered client, and returns what failed. */
function playAltered(array $numbers, array $changes): array
{
    return withAltered($changes, fn (string $dir) => playAll(array_map(fn (string $number) => glob(TRANSCRIPTS . "/$number-*.json")[0], $numbers), $dir));
}

/** A broken client fails transcripts: those that are about what it does wrong. */
function caught(array $numbers, array $changes, string $how): void
{
    $failed = playAltered($numbers, $changes);
    same(count($numbers), count($failed), 'failed transcripts');
    foreach ($failed as $said) {
        check(str_starts_with($said, 'FAILED') && preg_match("/$how/", $said) === 1, "it failed otherwise: $said");
    }
}

function testTranscripts(): void
{
    $files = glob(TRANSCRIPTS . '/*.json');
    check(count($files) > 30, 'transcripts');
    same([], playAll($files), 'failed');
}

function testTwinNoLookAtTheProcess(): void
{
    caught(['32'], [['Internal/State.php', '$this->here !== self::here()', 'false']], 'came twice');
}

function testTwinLooksAtTheProcessOnce(): void
{
    caught(['32'], [['Internal/State.php', '$had <= 100 * ($now - $this->looked)', '$this->looked < 0']], 'came twice');
}

function testEachPartTellsAChildApart(): void
{
    foreach (['getmypid()', '$id', '$start'] as $part) {
        $changes = [['Internal/State.php', 'return getmypid() . " $id $start";', "return (string) $part;"]];
        same([], playAltered(['32'], $changes), "with $part alone");
    }
}

function testTwinUsesALateAnswer(): void
{
    caught(['10'], [
        ['Internal/Exchange.php', 'if (State::now() >= $this->until || ', 'if (!$this->isLate() && State::now() >= $this->until && $GLOBALS["late"][] = $this or '],
        ['Internal/Exchange.php', '$left <= 0 && State::now() < $this->until', '$left <= 0 && ($this->isLate() || State::now() < $this->until)'],
        ['Internal/Exchange.php', 'private function write(', 'private function isLate(): bool { return in_array($this, $GLOBALS["late"] ?? [], true); } private function write('],
        ['Internal/Servers.php', '$exchange = $begun();', '$late = array_filter($GLOBALS["late"] ?? [], fn ($one) => $one->isDone(0.0));
            $exchange = $late === [] ? $begun() : reset($late);
            $GLOBALS["late"] = array_diff_key($GLOBALS["late"] ?? [], $late);'],
    ], 'got 12 13 14 15 16 17 18 19 20 1 2 3');
}

function testTwinGoesPastTheEnd(): void
{
    caught(['20'], [['Internal/Stretch.php', 'return State::now() >= $this->ends || microtime(true) >= $this->endsWall;', 'return false;']], 'got 3 4');
}

function testTwinCountsALostAnswerAsTaken(): void
{
    caught(['08', '09'], [
        ['Internal/Servers.php', '} catch (\RuntimeException $e) {', '} catch (\RuntimeException $e) {
            if (!$e instanceof HapaxException && $exchange->sent[2] > 0) {
                $made = ["count" => $exchange->sent[2], "first" => (string) (($GLOBALS["above"] ?? 0) + 1), "delta" => "1", "valid_for" => 60];
                return $read($made, $exchange->sent);
            }'],
        ['Internal/Servers.php', '$result = $read($answer, $exchange->sent);', '$result = $read($answer, $exchange->sent); $GLOBALS["above"] = (int) $answer["first"] + $answer["count"] - 1;'],
    ], 'got (1 2|11)');
}

function testTwinForgetsTheLastCode(): void
{
    caught(['33'], [['Internal/Line.php', 'throw $said;', 'throw $e;']], 'unavailable');
}

function testTwinGoesOnAfterAHandBack(): void
{
    $closed = "return \$this->isClosed ? throw new HapaxException('closed', 'the client was closed', true) : \$this;";
    caught(['29'], [['Internal/State.php', $closed, 'return $this;']], 'no error');
}

/** @return array{TestServer, Hapax\Client} */
function started(string $script = '{}', mixed ...$options): array
{
    $server = TestServer::plain($script);
    return [$server, new Hapax\Client($server->servers, ...$options + ['deadline' => 60.0, 'callTimeout' => 60.0])];
}

function testManyNumbers(): void
{
    [$server, $client] = started();
    $tag = $client->tag('orders');
    $numbers = [];
    for ($i = 0; $i < 20_000; $i++) {
        $numbers[] = $tag->next();
    }
    array_push($numbers, ...$tag->take(5000));
    same(25_000, count(array_unique($numbers)));
    $sorted = $numbers;
    sort($sorted);
    same($sorted, $numbers);
    $asked = count($server->bodies('/take'));
    check($asked < 50, "$asked requests: the step does not follow the use");
    $client->close();
    same('closed', code(fn () => $tag->next()));
    $server->close();
}

function testTheEndHandsBack(): void
{
    [$server, $client] = started('{}', ahead: false);
    same(1, $client->tag('orders')->next());
    unset($client);
    same([9], array_column($server->bodies('/handback'), 'unused'));
    $server->close();
}

function testAChildDoesNotHandBackTheParents(): void
{
    [$server, $client] = started('{}', ahead: false);
    $tag = $client->tag('orders');
    same(1, $tag->next());
    same(true, inChild(function () use (&$client, &$tag): bool {
        unset($client, $tag);
        return true;
    })());
    same([], $server->bodies('/handback'));
    same(2, $tag->next());
    $server->close();
}

function testAChildUsesNoConnectionOfItsParents(): void
{
    [$server, $client] = started('{}', ahead: false);
    $client->tag('orders')->next();
    $servers = Closure::bind(fn () => $this->here()->servers, $client, Hapax\Client::class)();
    $first = Closure::bind(fn () => $this->all[0], $servers, Hapax\Internal\Servers::class)();
    $isKept = Closure::bind(fn () => $this->kept() !== null, $first, Hapax\Internal\Server::class);
    same(false, inChild($isKept)(), 'in a child that a signal handler forked amid a call');
    same(true, $isKept());
    $server->close();
}

function testAShortLife(): void
{
    [$server, $client] = started('{}', isShortLived: true);
    $tag = $client->tag('orders');
    same([1], [$tag->next()]);
    same([2, 3, 4], $tag->take(3));
    $client->close();
    same([['count' => 1, 'receipt' => false], ['count' => 3, 'receipt' => false]], $server->bodies('/take'));
    same([], $server->bodies('/handback'));
    $server->close();
}

function testSignals(): void
{
    [$server, $client] = started('{}', minStep: 7, maxStep: 7);
    $tag = $client->tag('orders');
    $numbers = [];
    pcntl_async_signals(true);
    pcntl_signal(SIGUSR1, function () use ($tag, &$numbers): void {
        $numbers[] = $tag->next();
    });
    $me = getmypid();
    $signalling = inChild(function () use ($me): bool {
        for ($i = 0; $i < 300; $i++) {
            posix_kill($me, SIGUSR1);
            usleep(1000);
        }
        return true;
    });
    $others = [];
    for ($i = 0; $i < 3000; $i++) {
        $others[] = $tag->next();
    }
    same(true, $signalling());
    pcntl_signal(SIGUSR1, SIG_DFL);
    check(count($numbers) > 10, 'the handler took few numbers');
    $all = [...$numbers, ...$others];
    same(count($all), count(array_unique($all)));
    $client->close();
    $server->close();
}

function testASignalAtEachStatement(): void
{
    $sources = array_map(basename(...), glob(__DIR__ . '/../src/Internal/*.php'));
    $files = ['Client.php', 'Tag.php', ...array_map(fn (string $name) => "Internal/$name", $sources)];
    $ticks = array_map(fn (string $file) => [$file, 'declare(strict_types=1);', 'declare(strict_types=1, ticks=1);'], $files);
    foreach (['take', 'close', 'throw', 'fork'] as $what) {
        $said = withAltered($ticks, fn (string $dir) => shell_exec("HAPAX_PHP_SRC=$dir " . escapeshellarg(PHP_BINARY) . ' ' . __DIR__ . "/steps.php $what 2>&1"));
        same("done\n", $said, $what);
    }
}

function testClosedByASignal(): void
{
    [$server, $client] = started('{}', minStep: 1_000_000, maxStep: 1_000_000, ahead: false);
    $tag = $client->tag('orders');
    $last = $tag->next();
    pcntl_async_signals(true);
    pcntl_signal(SIGUSR1, fn () => $client->close());
    $me = getmypid();
    $signalling = inChild(fn () => usleep(50_000) ?? posix_kill($me, SIGUSR1));
    same('closed', code(function () use ($tag, &$last): void {
        for (;;) {
            $last = $tag->next();
        }
    }));
    same(true, $signalling());
    pcntl_signal(SIGUSR1, SIG_DFL);
    same([1_000_000 - $last], array_column($server->bodies('/handback'), 'unused'));
    $server->close();
}

function webProgram(TestServer $server): string
{
    return '<?php require ' . var_export(realpath(__DIR__ . '/../src/autoload.php'), true) . ";\n"
        . "\$client = new Hapax\\Client('{$server->servers[0]}'); echo \$client->tag('orders')->next();";
}

/** Each request of the web has a client of its own. */
function testWebRequests(): void
{
    $server = TestServer::plain();
    $dir = sys_get_temp_dir() . '/hapax-' . bin2hex(random_bytes(6));
    mkdir($dir);
    $program = webProgram($server);
    file_put_contents("$dir/index.php", $program);
    $log = tempnam($dir, 'log');
    $web = proc_open([PHP_BINARY, '-S', '127.0.0.1:0', '-t', $dir], [1 => ['file', $log, 'w'], 2 => ['file', $log, 'w']], $pipes, $dir);
    for ($tries = 0; !preg_match('~\(http://(127.0.0.1:\d+)\) started~', file_get_contents($log), $said); $tries++) {
        check($tries < 6000 && proc_get_status($web)['running'], 'the web server does not start');
        usleep(10_000);
    }
    $numbers = array_map(fn () => file_get_contents("http://$said[1]/index.php"), range(1, 20));
    proc_terminate($web);
    proc_close($web);
    array_map(unlink(...), glob("$dir/*"));
    rmdir($dir);
    same(array_map(strval(...), range(1, 20)), $numbers);
    same(array_fill(0, 20, ['count' => 1, 'receipt' => false]), $server->bodies('/take'));
    same([], $server->bodies('/handback'));
    $server->close();
}

/** And so in the children of php-fpm, each of which answers many requests, and is replaced amid them. */
function testPhpFpm(): void
{
    $fpm = Fpm::program();
    if ($fpm === null) {
        echo "skipped: no php-fpm here\n";
        return;
    }
    $server = TestServer::plain();
    file_put_contents($file = tempnam(sys_get_temp_dir(), 'hapax'), webProgram($server));
    $pool = new Fpm($fpm, $file);
    $numbers = [];
    for ($i = 0; $i < 20; $i++) {
        $begun = array_map(fn () => $pool->begin(), range(1, 8));
        array_push($numbers, ...array_map(fn (callable $end) => $end(), $begun));
    }
    $pool->close();
    unlink($file);
    sort($numbers, SORT_NUMERIC);
    same(array_map(strval(...), range(1, 160)), $numbers);
    same(array_fill(0, 160, ['count' => 1, 'receipt' => false]), $server->bodies('/take'));
    same([], $server->bodies('/handback'));
    $server->close();
}

function testALateAnswer(): void
{
    [$server, $client] = started('{"servers":[{"faults":[{"at":1,"times":-1,"do":"delay","ms":60000}]}]}', ahead: false);
    $tag = $client->tag('orders');
    same('unavailable', code(fn () => $tag->next(0.2)));
    same('unavailable', code(fn () => $tag->codes(1, 0.2)));
    $client->close();
    $server->close();
}

function testServersThatHangBeforeOneThatAnswers(): void
{
    $server = TestServer::plain();
    $hangs = stream_socket_server('tcp://127.0.0.1:0');
    $url = 'http://' . stream_socket_get_name($hangs, false);
    $client = new Hapax\Client([$url, $url, $server->servers[0]], deadline: 0.5, callTimeout: 0.3);
    same('unavailable', code(fn () => $client->tag('orders')->next()));
    $servers = Closure::bind(fn () => $this->here()->servers, $client, Hapax\Client::class)();
    check(Closure::bind(fn () => $this->preferred, $servers, Hapax\Internal\Servers::class)() > 0, 'its time never reaches the last');
    same(1, $client->tag('orders')->next(60.0));
    $server->close();
}

function testAnswersWithoutNumbers(): void
{
    $first = '"count":1,"first":"1","delta":"1","valid_for":60';
    $bodies = ['', '{', '{"a":' . str_repeat('[', 100_000), '{}', '{"count":1}', '{"count":1e0,"first":"1","delta":"1"}', '{"count":0,"ids":[]}', '{"count":11,"first":"1","delta":"1"}',
        '{"count":1,"first":1,"delta":"1"}', '{"count":1,"first":"-1","delta":"1"}', '{"count":1,"first":"9223372036854775808","delta":"1"}',
        '{"count":2,"first":"9223372036854775807","delta":"1"}', '{"count":2,"first":"1","delta":"0"}', '{"count":2,"first":"5","delta":"-1"}', '{"count":2,"first":"1"}',
        '{"count":1,"first":"' . str_repeat('9', 100_000) . '","delta":"1"}', '{"count":2,"ids":["1"]}', '{"count":1,"ids":[1]}', '{"count":1,"ids":{"a":"1"}}', '{"count":1,"ids":[["1"]]}',
        ...array_map(fn (string $valid) => '{' . str_replace('60', $valid, $first) . '}', ['-1', '[]', '"60"', '{}'])];
    $faults = array_map(fn (int $i) => ['at' => $i + 1, 'do' => 'answer', 'status' => 200, 'body' => $bodies[$i]], array_keys($bodies));
    [$server, $client] = started(json_encode(['servers' => [['faults' => $faults]]]), ahead: false);
    foreach ($bodies as $body) {
        try {
            check(false, substr($body, 0, 99) . ' has ' . $client->tag('orders')->next(0.01));
        } catch (Hapax\HapaxException $e) {
            same('unavailable', $e->errorCode, substr($body, 0, 99));
            check(strlen($e->getMessage()) < 300, 'a long message: ' . substr($e->getMessage(), 0, 300));
        }
    }
    same(1, $client->tag('orders')->next());
    $server->close();
}

function testLogger(): void
{
    require_once __DIR__ . '/psr.php';
    $logger = new Log();
    [$server, $client] = started('{"servers":[{"faults":[{"at":1,"do":"drop"}]}]}', logger: $logger);
    same(1, $client->tag('orders')->next());
    check(count($logger->lines) === 1 && str_contains($logger->lines[0], 'closed'), json_encode($logger->lines));
    $client->close();
    $server->close();
}

function testWrongSettings(): void
{
    foreach ([
        [[]], ['ftp://x'], ['http://u:secret@x'], ['x'], ['http://x', 'token' => 'a secret'], ['http://x', 'minStep' => 0], ['http://x', 'minStep' => 2, 'maxStep' => 1],
        ['http://x', 'maxStep' => 1_000_001], ['http://x', 'deadline' => 0.0], ['http://x', 'callTimeout' => NAN],
    ] as $wrong) {
        try {
            new Hapax\Client(...$wrong);
            check(false, json_encode($wrong));
        } catch (Hapax\HapaxException $e) {
            same('invalid_argument', $e->errorCode);
            check(!str_contains($e->getMessage(), 'secret'), $e->getMessage());
        }
    }
    $client = new Hapax\Client('http://127.0.0.1:1', token: 'hapax_secret', deadline: 0.1);
    same('invalid_tag', code(fn () => $client->tag("\xff")));
    same('unavailable', code(fn () => $client->tag('orders')->next()));
    check(!str_contains(print_r($client, true) . var_export(clone_of($client), true), 'secret'), 'the token is shown');
    foreach (['serialize', 'clone_of'] as $copy) {
        try {
            check($copy($client) === null, "$copy makes two of one");
        } catch (LogicException) {
        }
    }
}

function clone_of(object $o): ?object
{
    try {
        return clone $o;
    } catch (Error) {
        return null;
    }
}

function testReadme(): void
{
    $server = TestServer::plain();
    check(preg_match('/```php\n(.*?)```/s', file_get_contents(__DIR__ . '/../README.md'), $program) === 1, 'no program');
    $local = str_replace(['http://127.0.0.1:8080', 'vendor/autoload.php'], [$server->servers[0], __DIR__ . '/../src/autoload.php'], $program[1]);
    check($local !== $program[1], 'no address');
    file_put_contents($file = tempnam(sys_get_temp_dir(), 'hapax'), str_starts_with($local, '<?php') ? $local : "<?php\n$local");
    same('1', trim((string) shell_exec(escapeshellarg(PHP_BINARY) . ' ' . escapeshellarg($file))));
    unlink($file);
    $server->close();
}

runTests($argv[1] ?? '');

<?php

// Plays the client's part of transcripts: php play.php HAPAX FILE... prints a line for each. HAPAX_PHP_SRC
// is another directory with the client's sources.

declare(strict_types=1);

require_once (getenv('HAPAX_PHP_SRC') ?: __DIR__ . '/../src') . '/autoload.php';

/** What was not as the transcript has it. */
final class Failed extends Exception
{
}

/** hapax testserver, which ends with this process. */
final class TestServer
{
    /** @var list<string> */
    public array $servers = [];
    public string $control = '';
    private mixed $process;
    private array $pipes = [];

    public function __construct(string $binary, string $script)
    {
        $command = [$binary, 'testserver', '--http', '127.0.0.1:0', '--until-eof', '--script', $script];
        $this->process = proc_open($command, [['pipe', 'r'], ['pipe', 'w'], STDERR], $this->pipes);
        while (($line = fgets($this->pipes[1])) !== false && $line !== "ready\n") {
            [$what, $url] = explode(' ', trim($line));
            $what === 'server' ? $this->servers[] = $url : $this->control = $url;
        }
        if ($this->servers === []) {
            throw new Failed('the test server does not start');
        }
    }

    /** Runs one with an empty script. */
    public static function plain(string $script = '{}'): self
    {
        $file = tempnam(sys_get_temp_dir(), 'hapax');
        file_put_contents($file, $script);
        $server = new self(getenv('HAPAX') ?: 'hapax', $file);
        unlink($file);
        return $server;
    }

    public function ask(string $path, ?array $body = null): string
    {
        $post = $body === null ? [] : ['method' => 'POST', 'header' => 'Content-Type: application/json', 'content' => json_encode($body)];
        $answer = file_get_contents($this->control . $path, false, stream_context_create(['http' => $post + ['ignore_errors' => true, 'timeout' => 60]]));
        if (!str_contains($http_response_header[0], ' 200')) {
            throw new Failed($answer);
        }
        return $answer;
    }

    /** @return list<array> the bodies of the requests to a route */
    public function bodies(string $route): array
    {
        $requests = array_filter(json_decode($this->ask('/requests'), true), fn (array $r) => str_ends_with($r['path'], $route));
        return array_column($requests, 'body');
    }

    public function close(): void
    {
        array_map(fclose(...), $this->pipes);
        proc_close($this->process);
    }
}

function play(string $binary, string $file): void
{
    $script = json_decode(file_get_contents($file), true, 32, JSON_THROW_ON_ERROR);
    $server = new TestServer($binary, $file);
    try {
        $o = $script['client'] ?? [];
        $client = new Hapax\Client(
            $server->servers,
            token: $o['token'] ?? null,
            minStep: $o['min_step'] ?? null,
            maxStep: $o['max_step'] ?? 100_000,
            ahead: $o['ahead'] ?? null,
            deadline: ($o['deadline_ms'] ?? 5000) / 1000,
            callTimeout: ($o['call_timeout_ms'] ?? 3000) / 1000,
        );
        $seen = [];
        foreach ($script['steps'] as $i => $step) {
            try {
                perform($client, $server, $step, $seen);
            } catch (Failed | Hapax\HapaxException $e) {
                throw new Failed('step ' . ($i + 1) . ', ' . json_encode($step) . ": {$e->getMessage()}");
            }
        }
        $server->ask('/check');
    } finally {
        $server->close();
    }
}

function perform(Hapax\Client $client, TestServer $server, array $step, array &$seen): void
{
    match ($step['do']) {
        'sleep' => usleep(1000 * $step['ms']),
        'requests' => $server->ask("/requests?done={$step['done']}"),
        'server' => $server->ask('/do', $step['fault']),
        'close' => $client->close(),
        'fork' => see($step['tag'], forked($client, $step), $seen),
        default => call($client, $step, $seen),
    };
}

function call(Hapax\Client $client, array $step, array &$seen): void
{
    $got = [];
    try {
        $tag = $client->tag($step['tag']);
        for ($i = 0; $i < ($step['times'] ?? 1); $i++) {
            array_push($got, ...match ($step['do']) {
                'next' => [$tag->next()],
                'take' => $tag->take($step['count']),
                'codes' => array_column($tag->codes($step['count']), 'text'),
            });
        }
    } catch (Hapax\HapaxException $e) {
        if ($e->errorCode !== ($step['error'] ?? null)) {
            throw $e;
        }
        return;
    }
    if (isset($step['error'])) {
        throw new Failed('no error, but ' . implode(' ', $got));
    }
    see($step['tag'], $got, $seen);
    if (isset($step['want']) && array_map(strval(...), $got) !== $step['want']) {
        throw new Failed('got ' . implode(' ', $got));
    }
}

function see(string $tag, array $numbers, array &$seen): void
{
    foreach ($numbers as $n) {
        if (isset($seen["$tag $n"])) {
            throw new Failed("$n came twice");
        }
        $seen["$tag $n"] = true;
    }
}

/** Takes numbers in a child and here. */
function forked(Hapax\Client $client, array $step): array
{
    $take = fn (): array => array_map(fn () => $client->tag($step['tag'])->next(), range(1, $step['times']));
    [$read, $write] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        fwrite($write, json_encode($take()));
        posix_kill(getmypid(), SIGKILL); // without destructors, one of which ends the test server's process
    }
    fclose($write);
    $here = $take();
    $there = json_decode(stream_get_contents($read) ?: '[]', true);
    pcntl_waitpid($pid, $status);
    if (count($there) !== $step['times']) {
        throw new Failed('the child got no numbers');
    }
    return [...$here, ...$there];
}

if (realpath($_SERVER['SCRIPT_FILENAME']) === __FILE__) {
    $failed = 0;
    foreach (array_slice($argv, 2) as $file) {
        try {
            play($argv[1], $file);
            echo 'ok ', basename($file), "\n";
        } catch (Failed $e) {
            $failed = 1;
            echo 'FAILED ', basename($file), ' ', $e->getMessage(), "\n";
        }
    }
    exit($failed);
}

<?php

// Takes numbers in eight processes, two of which fork amid it, and prints them: php soak.php COUNT URL...

declare(strict_types=1);

require __DIR__ . '/../src/autoload.php';

const WORKERS = 8;
$count = (int) $argv[1];
$client = new Hapax\Client(array_slice($argv, 2), maxStep: 2000, deadline: 120.0);
$tag = $client->tag('orders');

/** Does something in a child, and returns its ID. */
function inChild(callable $work): int
{
    global $client;
    $pid = pcntl_fork();
    if ($pid === 0) {
        $status = 1;
        try {
            $work();
            $client->close();
            $status = 0;
        } finally {
            exit($status);
        }
    }
    return $pid;
}

function work(int $numbers, bool $forks): void
{
    global $count, $tag;
    while ($numbers > 0) {
        if ($forks && $numbers < $count / WORKERS / 2) {
            $half = intdiv($numbers, 2);
            $pid = inChild(fn () => work($half, false));
            work($numbers - $half, false);
            pcntl_waitpid($pid, $status);
            if ($status !== 0) {
                throw new Exception('a child failed');
            }
            return;
        }
        $n = min($numbers, 100);
        for ($some = ''; $n > 0; $n--, $numbers--) {
            $some .= $tag->next() . "\n";
        }
        fwrite(STDOUT, $some); // short enough to be written at once
    }
}

work(1, false); // the parent has some in hand
$pids = array_map(fn (int $i) => inChild(fn () => work(intdiv($count, WORKERS), $i % 4 === 0)), range(0, WORKERS - 1));
$failed = 0;
foreach ($pids as $pid) {
    pcntl_waitpid($pid, $status);
    $failed += (int) ($status !== 0);
}
work(1, false);
$client->close();
exit($failed);

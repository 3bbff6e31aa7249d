<?php

// Takes five numbers again and again, and does something amid that, as the handler of a signal would, one statement
// later each time: php steps.php take|close|throw|fork. HAPAX_PHP_SRC has sources with ticks. It prints what is wrong.

declare(strict_types=1);

require_once __DIR__ . '/run.php';

[$server, $seen, $at, $step, $do] = [TestServer::plain(), [], 0, 0, null];
register_tick_function(function () use (&$at, &$step, &$do): void {
    if ($do !== null && ++$step === $at) {
        [$handler, $do] = [$do, null];
        $handler();
    }
});

do {
    [$step, $inner, $join, $got] = [0, [], null, []];
    $at++;
    foreach ([0, 2] as $hand) {
        $client = new Hapax\Client($server->servers, minStep: 3, maxStep: 3, deadline: 10.0, callTimeout: 0.2);
        $tag = $client->tag('orders');
        $all = $tag->take(3 - $hand);
        $me = getmypid();
        $step = 0;
        $do = match ($argv[1]) {
            'take' => function () use ($tag, &$inner): void {
                $inner = $tag->take(4);
            },
            'close' => $client->close(...),
            'throw' => fn () => throw new LogicException('by a handler'),
            'fork' => function () use (&$child): void {
                $pipe = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
                $child = [pcntl_fork(), ...$pipe];
            },
        };
        [$inner, $got, $there, $child] = [[], [], [], null];
        try {
            $got = $tag->take(5);
        } catch (Hapax\HapaxException | LogicException $e) {
            if ($argv[1] === 'take' || $argv[1] === 'fork') {
                echo "statement $at, $hand in hand: {$e->getMessage()}\n";
            }
        }
        $isOver = $do !== null; // there are fewer statements
        $do = null;
        if (getmypid() !== $me) {
            fwrite($child[2], json_encode($got));
            posix_kill(getmypid(), SIGKILL);
        }
        if ($child !== null) {
            fclose($child[2]);
            $there = json_decode(stream_get_contents($child[1]) ?: '[]');
            pcntl_waitpid($child[0], $status);
            $there = $there === $got ? [] : $there; // it forked when the call had its numbers
        }
        if ($argv[1] === 'throw') {
            array_push($all, ...$tag->take(5));
        }
        array_push($all, ...$got, ...$inner, ...$there);
        if (count(array_unique($all)) < count($all) || array_intersect_key(array_flip($all), $seen) !== []) {
            echo "statement $at, $hand in hand: a number came twice: ", json_encode([$got, $inner, $there]), "\n";
        }
        $seen += array_flip($all);
        $client->close();
    }
} while (!$isOver);
echo $at > 90 ? "done\n" : "too few statements\n";
$server->close();

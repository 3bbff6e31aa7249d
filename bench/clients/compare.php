<?php

// What compare measures, in PHP: compare.php HTTP-URL REDIS-PORT SECONDS.

declare(strict_types=1);

require __DIR__ . '/../../clients/php/src/autoload.php';

[, $url, $redisPort, $seconds] = $argv;

function measure(string $name, callable $call, int $numbers = 1): void
{
    global $seconds;
    for ($end = hrtime(true) + 1e9 * $seconds / 4; hrtime(true) < $end;) { // warm
        $call();
    }
    $times = [];
    $began = $last = hrtime(true);
    while ($last < $began + 1e9 * $seconds) {
        $call();
        $now = hrtime(true);
        $times[] = $now - $last;
        $last = $now;
    }
    sort($times);
    echo $name, ' ', count($times) * $numbers / ($last - $began) * 1e9, ' ', $times[intdiv(count($times) * 99, 100)] / 1e3, "\n";
}

function connected(int $port): mixed
{
    return stream_socket_client("tcp://127.0.0.1:$port", context: stream_context_create(['socket' => ['tcp_nodelay' => true]]));
}

function overHttp(mixed $http, string $request): void
{
    fwrite($http, $request);
    for ($got = ''; ($head = strpos($got, "\r\n\r\n")) === false;) {
        $got .= fread($http, 65536);
    }
    preg_match('/content-length: *(\d+)/i', $got, $length);
    while (strlen($got) < $head + 4 + (int) $length[1]) {
        $got .= fread($http, 65536);
    }
}

function overRedis(mixed $redis, string $request, int $replies): void
{
    fwrite($redis, $request);
    while ($replies > 0) {
        $replies -= substr_count(fread($redis, 65536), "\n");
    }
}

$client = new Hapax\Client($url);
$tag = $client->tag('bench');
measure('next', fn () => $tag->next());
measure('take', fn () => $tag->take(100), 100);
$client->close();
[$http, $redis] = [connected(parse_url($url, PHP_URL_PORT)), connected((int) $redisPort)];
$request = "POST /v1/tags/bench/ids HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n";
$incr = "*2\r\n$4\r\nINCR\r\n$5\r\nbench\r\n";
measure('http', fn () => overHttp($http, $request));
measure('redis', fn () => overRedis($redis, $incr, 1));
measure('pipeline', fn () => overRedis($redis, str_repeat($incr, 100), 100), 100);

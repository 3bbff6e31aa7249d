<?php

// Eight processes insert rows into a real PostgreSQL: no number twice, and few requests. Needs Doctrine, PDO
// for PostgreSQL, its programs under /usr/lib/postgresql, and Composer.

declare(strict_types=1);

use Hapax\Doctrine\Numbers;

error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED); // Doctrine has some
require __DIR__ . '/run.php';
require __DIR__ . '/../examples/doctrine_orders.php';

const WORKERS = 8;
define('ROWS', getenv('HAPAX_TEST_SOAK') ? 100_000 : 16_000);

/** A server of its own, in a fresh directory. */
final class Postgres
{
    public readonly string $database;
    private readonly string $dir;
    private mixed $process;

    public function __construct()
    {
        $programs = glob('/usr/lib/postgresql/*/bin')[0] ?? throw new Failed('no PostgreSQL');
        $this->dir = sys_get_temp_dir() . '/hapax-' . bin2hex(random_bytes(6));
        mkdir($this->dir, 0700);
        $as = [];
        if (posix_geteuid() === 0) { // PostgreSQL refuses to run as root
            chown($this->dir, 'postgres');
            $as = ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups'];
        }
        $socket = stream_socket_server('tcp://127.0.0.1:0');
        $port = explode(':', stream_socket_get_name($socket, false))[1];
        fclose($socket);
        $nothing = ['file', '/dev/null', 'w'];
        $init = proc_open([...$as, "$programs/initdb", '-D', "{$this->dir}/data", '-A', 'trust', '-U', 'postgres', '--no-sync'], [1 => $nothing, 2 => $nothing], $pipes, '/');
        same(0, proc_close($init), 'initdb');
        $run = [...$as, "$programs/postgres", '-D', "{$this->dir}/data", '-p', $port, '-h', '127.0.0.1', '-k', $this->dir, '-c', 'fsync=off', '-c', 'logging_collector=off'];
        $this->process = proc_open($run, [1 => $nothing, 2 => ['file', $log = "{$this->dir}.log", 'w']], $pipes, '/');
        for ($tries = 0; !str_contains((string) file_get_contents($log), 'ready to accept connections'); $tries++) {
            check($tries < 6000 && proc_get_status($this->process)['running'], 'PostgreSQL does not start');
            usleep(10_000);
        }
        $this->database = "pgsql:127.0.0.1:$port:postgres:postgres";
    }

    public function close(): void
    {
        proc_terminate($this->process, SIGINT); // SIGTERM waits for connections
        proc_close($this->process);
        shell_exec('rm -r ' . escapeshellarg($this->dir) . ' ' . escapeshellarg("{$this->dir}.log"));
    }
}

function testDoctrine(): void
{
    $postgres = new Postgres();
    $server = TestServer::plain();
    $client = new Hapax\Client($server->servers, deadline: 60.0, callTimeout: 60.0);
    Numbers::of($client);
    $em = entityManager($postgres->database);
    $em->getConnection()->executeStatement('CREATE TABLE orders (id bigint PRIMARY KEY, what text NOT NULL)');
    $em->persist($order = new Order('tea'));
    $em->flush();
    same(1, $order->id);
    $em->clear();
    same('tea', $em->find(Order::class, 1)->what);
    $em->getConnection()->close();

    // Children of a parent that has numbers in hand, as in a pool of workers.
    $workers = array_map(fn () => inChild(function () use ($postgres, $client): bool {
        insert($postgres->database, intdiv(ROWS, WORKERS));
        $client->close();
        return true;
    }), range(1, WORKERS));
    foreach ($workers as $done) {
        same(true, $done());
    }
    $rows = (int) $em->getConnection()->fetchOne('SELECT count(*) FROM orders');
    $em->getConnection()->close();
    same(ROWS + 1, $rows, 'rows'); // a number twice is an error of the primary key

    $counts = array_column($server->bodies('/take'), 'count');
    $steady = count(array_filter($counts, fn (int $count) => $count >= 1000));
    check(count($counts) - $steady <= 8 * (WORKERS + 1), count($counts) - $steady . ' small requests: the step does not grow');
    check($steady > 0, 'no worker came to its steady state');
    check($steady <= ROWS / 500, "$steady requests in steady state");

    // What Doctrine keeps in its cache holds no numbers, and works when it comes back.
    $generator = unserialize(serialize($em->getClassMetadata(Order::class)->idGenerator));
    check($generator->generateId($em, $order) > 1, 'a generator from the cache');
    Numbers::of(null);
    $client->close();
    $server->close();
    $postgres->close();
}

function testComposer(): void
{
    $server = TestServer::plain();
    $dir = sys_get_temp_dir() . '/hapax-' . bin2hex(random_bytes(6));
    mkdir($dir);
    $package = json_encode(realpath(__DIR__ . '/..'));
    file_put_contents("$dir/composer.json", '{"repositories": [{"type": "path", "url": ' . $package . '}, {"packagist.org": false}]}');
    $environment = ['COMPOSER_ALLOW_SUPERUSER' => '1', 'COMPOSER_HOME' => $dir, 'COMPOSER_DISABLE_NETWORK' => '1'] + getenv();
    $run = fn (array $command) => proc_close(proc_open($command, [1 => ['file', "$dir/out", 'w'], 2 => ['file', "$dir/log", 'w']], $pipes, $dir, $environment));
    $installed = $run(['composer', 'require', '--no-interaction', 'hapax-id/hapax:@dev']);
    same(0, $installed, (string) file_get_contents("$dir/log"));
    file_put_contents("$dir/a.php", "<?php require 'vendor/autoload.php'; echo (new Hapax\\Client('{$server->servers[0]}'))->tag('orders')->next();");
    same(0, $run([PHP_BINARY, 'a.php']));
    same('1', file_get_contents("$dir/out"));
    shell_exec('rm -r ' . escapeshellarg($dir));
    $server->close();
}

runTests($argv[1] ?? '');

<?php

// Eloquent, as in Laravel: a model takes a number from hapax when it is created.

declare(strict_types=1);

use Illuminate\Container\Container;
use Illuminate\Database\Capsule\Manager;
use Illuminate\Database\Eloquent\Model;
use Illuminate\Events\Dispatcher;

error_reporting(E_ALL & ~E_DEPRECATED); // of older releases
require_once 'Illuminate/Database/autoload.php'; // of Debian; or the one of Composer
require_once 'Illuminate/Events/autoload.php';
require_once __DIR__ . '/../../../clients/php/src/autoload.php';

/** What Laravel has as a singleton of its container. */
function orders(): Hapax\Tag
{
    static $tag;
    return $tag ??= (new Hapax\Client(getenv('HAPAX_SERVER')))->tag('eloquent-orders');
}

class Order extends Model
{
    protected $table = 'recipe_eloquent';
    protected $guarded = [];
    public $incrementing = false;
    public $timestamps = false;

    protected static function booted()
    {
        static::creating(fn (self $order) => $order->id ??= orders()->next());
    }
}

$url = parse_url(getenv('DATABASE_URL'));
$database = new Manager();
$database->addConnection([
    'driver' => 'pgsql', 'host' => $url['host'], 'port' => $url['port'], 'username' => $url['user'],
    'password' => $url['pass'] ?? '', 'database' => ltrim($url['path'], '/'), 'charset' => 'utf8',
]);
$database->setEventDispatcher(new Dispatcher(new Container()));
$database->bootEloquent();

if ($argv[1] === 'create') {
    $database->getConnection()->statement('CREATE TABLE recipe_eloquent (id bigint PRIMARY KEY, what text NOT NULL)');
    exit;
}
$rows = (int) $argv[1];
Order::create(['what' => 'before the fork']);
$database->getConnection()->disconnect(); // a connection is not shared, either
$child = pcntl_fork();
for ($i = 0; $i < $rows; $i++) {
    Order::create(['what' => "order $i"]);
}
Order::insert(array_map(fn (int $id) => ['id' => $id, 'what' => 'bulk'], orders()->take($rows))); // tells no events
if ($child > 0) {
    pcntl_waitpid($child, $status);
    exit($status === 0 ? 0 : 1);
}

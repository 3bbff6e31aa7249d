<?php

// Inserts rows whose numbers come from hapax: php doctrine_orders.php pgsql:HOST:PORT:USER:DATABASE HAPAX-URL [ROWS]

declare(strict_types=1);

use Doctrine\DBAL\DriverManager;
use Doctrine\ORM\Configuration;
use Doctrine\ORM\EntityManager;
use Doctrine\ORM\Mapping as ORM;
use Doctrine\ORM\Mapping\Driver\AttributeDriver;
use Hapax\Client;
use Hapax\Doctrine\Numbers;

require_once 'Doctrine/ORM/autoload.php'; // of Debian; or the one of Composer
require_once __DIR__ . '/../src/autoload.php';

#[ORM\Entity, ORM\Table('orders')]
class Order
{
    #[ORM\Id, ORM\Column(type: 'bigint'), ORM\GeneratedValue(strategy: 'CUSTOM'), ORM\CustomIdGenerator(Numbers::class)]
    public readonly int $id;

    public function __construct(#[ORM\Column(type: 'text')] public readonly string $what)
    {
    }
}

function entityManager(string $database): EntityManager
{
    [$driver, $host, $port, $user, $name] = explode(':', $database);
    $config = new Configuration();
    $config->setMetadataDriverImpl(new AttributeDriver([__DIR__]));
    $config->setProxyDir(sys_get_temp_dir());
    $config->setProxyNamespace('Proxies');
    $connection = DriverManager::getConnection(['driver' => "pdo_$driver", 'host' => $host, 'port' => (int) $port, 'user' => $user, 'dbname' => $name]);
    return new EntityManager($connection, $config);
}

function insert(string $database, int $rows): void
{
    $em = entityManager($database);
    for (; $rows > 0; $rows -= 250) {
        for ($i = 0; $i < min(250, $rows); $i++) {
            $em->persist(new Order('tea'));
        }
        $em->flush();
        $em->clear();
    }
    $em->getConnection()->close();
}

if (realpath($_SERVER['SCRIPT_FILENAME']) === __FILE__) {
    [, $database, $server] = $argv;
    Numbers::of(new Client($server));
    entityManager($database)->getConnection()->executeStatement('CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, what text NOT NULL)');
    insert($database, (int) ($argv[3] ?? 1));
}

-- top
SELECT `t1`.`product` AS `product`, SUM(`t1`.`qty`) AS `sum` FROM `shop`.`sales` AS `t1` WHERE (`t1`.`sold_at` >= timestamp '2026-02-01 00:00:00.000') AND (`t1`.`sold_at` < timestamp '2026-06-01 00:00:00.000') GROUP BY `t1`.`product` ORDER BY `sum` DESC, `t1`.`product` ASC LIMIT 10;
-- month
SELECT DATE_TRUNC('month', `shop`.`sales`.`sold_at`) AS `sold_at`, SUM(`shop`.`sales`.`price`) AS `sum` FROM `shop`.`sales` WHERE (`shop`.`sales`.`sold_at` >= timestamp '2026-03-01 00:00:00.000') AND (`shop`.`sales`.`sold_at` < timestamp '2026-06-01 00:00:00.000') GROUP BY DATE_TRUNC('month', `shop`.`sales`.`sold_at`) ORDER BY DATE_TRUNC('month', `shop`.`sales`.`sold_at`) ASC;
-- having
SELECT `source`.`product` AS `product`, `source`.`count` AS `count`, `source`.`sum` AS `sum` FROM (SELECT `main`.`shop`.`sales`.`product` AS `product`, COUNT(*) AS `count`, SUM(`main`.`shop`.`sales`.`qty`) AS `sum` FROM `main`.`shop`.`sales` GROUP BY `main`.`shop`.`sales`.`product` ORDER BY `main`.`shop`.`sales`.`product` ASC) AS `source` WHERE `source`.`sum` > 60 LIMIT 1048575;
-- total
SELECT SUM(`t1`.`qty`) AS `sum` FROM `shop`.`sales` AS `t1` WHERE ((`t1`.`region` = 'north') OR (`t1`.`region` = 'east')) AND (`t1`.`sold_on` >= date '2026-04-01');
-- segments
SELECT `Customers`.`segment` AS `Customers__segment`, SUM(`shop`.`sales`.`qty`) AS `sum` FROM `shop`.`sales` LEFT JOIN `shop`.`customers` AS `Customers` ON `shop`.`sales`.`customer_id` = `Customers`.`customer_id` WHERE `shop`.`sales`.`sold_on` >= date '2026-04-01' GROUP BY `Customers`.`segment` ORDER BY `sum` DESC, `Customers`.`segment` ASC;
-- values
SELECT `t1`.`product` AS `product` FROM `shop`.`sales` AS `t1` WHERE `t1`.`sold_on` >= date '2026-04-01' GROUP BY `t1`.`product` ORDER BY `t1`.`product` ASC LIMIT 1000;
-- series
SELECT `source`.`region` AS `region`, `source`.`avg` AS `avg` FROM (SELECT `t1`.`region` AS `region`, AVG(`t1`.`qty`) AS `avg`, COUNT(DISTINCT `t1`.`product`) AS `count` FROM `shop`.`sales` AS `t1` WHERE `t1`.`qty` > 2 GROUP BY `t1`.`region`) AS `source` WHERE `source`.`count` >= 3 ORDER BY `source`.`avg` DESC, `source`.`region` ASC LIMIT 2;
-- rows
SELECT `source`.`id` AS `id`, `source`.`product` AS `product`, `source`.`qty` AS `qty` FROM (SELECT * FROM shop.sales WHERE region = 'north') AS `source` WHERE `source`.`qty` >= 8 ORDER BY `source`.`price` DESC, `source`.`id` ASC LIMIT 2000;

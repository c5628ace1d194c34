-- top
SELECT `sales`.`product` AS `product`,
  SUM(`sales`.`qty`) AS `sum_qty_ok`
FROM `main`.`shop`.`sales` `sales`
  JOIN (
  SELECT `sales`.`product` AS `product`,
    SUM(`sales`.`qty`) AS `$__alias__0`
  FROM `main`.`shop`.`sales` `sales`
  GROUP BY 1
  ORDER BY `$__alias__0` DESC
  LIMIT 3
) `t0` ON (`sales`.`product` = `t0`.`product`)
GROUP BY 1;
-- month
SELECT SUM(`sales`.`price`) AS `sum_price_ok`,
  DATE_TRUNC('MONTH',CAST(`sales`.`sold_at` AS TIMESTAMP)) AS `tmn_sold_at_ok`
FROM `shop`.`sales` `sales`
WHERE ((`sales`.`sold_at` >= TIMESTAMP '2026-03-01 00:00:00') AND (`sales`.`sold_at` < TIMESTAMP '2026-06-01 00:00:00'))
GROUP BY 2;
-- having
SELECT `sales`.`product` AS `product`,
  SUM(`sales`.`qty`) AS `sum_qty_ok`
FROM `main`.`shop`.`sales` `sales`
GROUP BY 1
HAVING ((SUM(`sales`.`qty`) >= 60) AND (SUM(`sales`.`qty`) <= 100000));
-- total
SELECT SUM(`sales`.`qty`) AS `sum_qty_ok`
FROM `shop`.`sales` `sales`
WHERE ((`sales`.`region` IN ('east', 'north')) AND (`sales`.`sold_on` >= DATE '2026-04-01'))
HAVING (COUNT(1) > 0);
-- segments
SELECT `customers`.`segment` AS `segment`,
  SUM(1) AS `sum_number_of_records_ok`,
  SUM(CAST(`sales`.`qty` AS DOUBLE)) AS `sum_qty_ok`
FROM `main`.`shop`.`sales` `sales`
  INNER JOIN `main`.`shop`.`customers` `customers` ON (`sales`.`customer_id` = `customers`.`customer_id`)
WHERE (`sales`.`sold_on` >= DATE '2026-04-01')
GROUP BY 1;
-- values
SELECT `sales`.`product` AS `product`
FROM `shop`.`sales` `sales`
WHERE (`sales`.`sold_on` >= DATE '2026-04-01')
GROUP BY 1;
-- custom
SELECT `Custom SQL Query`.`product` AS `product`,
  SUM(`Custom SQL Query`.`revenue`) AS `sum_revenue_ok`
FROM (
  select product, region, qty * price as revenue
  from main.shop.sales
  where qty > 2
) `Custom SQL Query`
WHERE (`Custom SQL Query`.`region` = 'north')
GROUP BY 1
HAVING (COUNT(1) > 0);
-- rows
SELECT `sales`.`id` AS `id`,
  `sales`.`product` AS `product`,
  `sales`.`qty` AS `qty`,
  1 AS `one`
FROM `main`.`shop`.`sales` `sales`
WHERE ((`sales`.`qty` >= 8) AND (NOT (`sales`.`region` IN ('west'))));

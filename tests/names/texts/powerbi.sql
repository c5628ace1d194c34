-- top
select `product`,
    `C1`
from 
(
    select `product`,
        sum(`qty`) as `C1`
    from 
    (
        select `product`,
            `qty`
        from `main`.`shop`.`sales`
        where `sold_at` >= timestamp '2026-02-01 00:00:00'
    ) as `ITBL`
    group by `product`
) as `ITBL`
order by `C1` desc,
        `product`
limit 101;
-- month
select `OTBL`.`C0`, sum(cast(`OTBL`.`price` as DOUBLE)) as `a0`
from 
(
    select `price`,
        year(`sold_on`) * 100 + month(`sold_on`) as `C0`
    from `main`.`shop`.`sales`
    where `sold_on` >= date '2026-03-01' and `sold_on` < date '2026-06-01'
) as `OTBL`
group by `OTBL`.`C0`
limit 1000001;
-- having
select `product`,
    `C1`
from 
(
    select `product`,
        sum(`qty`) as `C1`
    from `main`.`shop`.`sales`
    group by `product`
) as `ITBL`
where `C1` > 60
limit 1000001;
-- total
select sum(`_`.`qty`) as `C1`,
    count(1) as `C2`
from 
(
    select `qty`
    from `main`.`shop`.`sales` as `_`
    where `_`.`region` in ('east', 'north') and `_`.`sold_on` >= date '2026-04-01'
) as `_`;
-- segments
select `OTBL`.`segment`, sum(`OTBL`.`qty`) as `a0`
from 
(
    select `OTBL`.`qty`,
        `ITBL`.`segment`
    from `main`.`shop`.`sales` as `OTBL`
    inner join `main`.`shop`.`customers` as `ITBL` on (`OTBL`.`customer_id` = `ITBL`.`customer_id`)
    where `OTBL`.`sold_on` >= date '2026-04-01'
) as `OTBL`
group by `OTBL`.`segment`
limit 1000001;
-- values
select `product`
from `main`.`shop`.`sales`
where `sold_on` >= date '2026-04-01'
group by `product`
order by `product`
limit 101;
-- outer
select `OTBL`.`product`,
    `ITBL`.`name`,
    `OTBL`.`qty`
from `main`.`shop`.`sales` as `OTBL`
left outer join `main`.`shop`.`customers` as `ITBL` on (`OTBL`.`customer_id` = `ITBL`.`customer_id` or `OTBL`.`customer_id` is null and `ITBL`.`customer_id` is null)
where `OTBL`.`qty` >= 8 and `OTBL`.`region` = 'north';
-- rows
select `_`.`id`,
    `_`.`product`,
    `_`.`qty`
from 
(
    select `id`, `product`, `qty`, `region`
    from `main`.`shop`.`sales`
) `_`
where `_`.`qty` >= 8 and (`_`.`region` <> 'west' or `_`.`region` is null)
order by `_`.`qty` desc,
        `_`.`id`
limit 200;
